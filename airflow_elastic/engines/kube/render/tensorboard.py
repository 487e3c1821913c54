"""A TensorBoard beside the workers, which shows the event files of the run.

It is a native sidecar (an init container that goes on running): it ends with the training container, and keeps no job
from ending. All pods of a job have the same template. So each worker has the sidecar, and only that of worker 0 starts
TensorBoard; the others sleep. TensorBoard listens to its own pod alone, because it asks nobody for a password.
`kubectl port-forward` reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.engines.kube.render.names import VARIABLE_PREFIX, VOLUME_PREFIX
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import Problem

if TYPE_CHECKING:
    from airflow_elastic.engines.api import Job
    from airflow_elastic.engines.kube.options import KubeOptions, Volume
    from airflow_elastic.spec.run import RunSpec

#: The name of its container.
CONTAINER = f"{VOLUME_PREFIX}tensorboard"

# The first process of a container ignores SIGTERM unless it says otherwise: the pod would end only when it is killed.
_SCRIPT = (
    f'if [ "${VARIABLE_PREFIX}INDEX" = 0 ]; then exec "$@"; fi; trap "exit 0" TERM; '
    "while true; do sleep 86400 & wait $!; done"
)


def sidecar(job: Job, options: KubeOptions, env: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The container of TensorBoard; None if there is none.

    Args:
        job: the attempt.
        options: of its engine.
        env: the variables of the training container: TensorBoard needs the same credentials.
    """
    board = options.tensorboard
    if board is None or not board.is_sidecar:
        return None
    own = board.image is None
    program = [options.python, "-m", "tensorboard.main"] if own else ["tensorboard"]
    logs = f"{job.run_uri.rstrip('/')}/{layout.TENSORBOARD}".rstrip("/")
    found = {
        "name": CONTAINER,
        "image": board.image or options.image,
        "imagePullPolicy": options.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["sh", "-c", _SCRIPT, "sh", *program, "--logdir", logs, "--port", str(board.port)],
        "env": env,
        "envFrom": [dict(one) for one in options.env_from],
        "resources": {"requests": dict(board.resources)},
        "volumeMounts": [mount for _, mount in [_mount(job.run_uri, options)] if mount],
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def without_sidecar(template: dict[str, Any]) -> None:
    """Take TensorBoard out of the template of pods without worker 0."""
    spec = template["spec"]
    spec["initContainers"] = [one for one in spec.get("initContainers", ()) if one["name"] != CONTAINER]
    if not spec["initContainers"]:
        del spec["initContainers"]


def board_problems(spec: RunSpec, options: KubeOptions) -> list[Problem]:
    """What is wrong with a TensorBoard beside the workers, before anything is known of the place of the run."""
    board, path = options.tensorboard, "engine_options.tensorboard"
    if board is None or not board.is_sidecar:
        return []
    found = []
    if not spec.tensorboard:
        found.append(Problem(path, "given", "only with tensorboard: true, which writes the event files"))
    if board.image is None and options.image is None:
        found.append(Problem(f"{path}.image", None, "an image, if engine_options.image names none"))
    return found


def board_problem(job: Job, options: KubeOptions) -> str | None:
    """Why TensorBoard cannot read the event files; None if it can, or if there is none."""
    board = options.tensorboard
    if board is None or not board.is_sidecar or not job.run_uri.startswith("/"):
        return None
    if _mount(job.run_uri, options)[0] is None:
        return (
            f"TensorBoard beside the workers does not see the folder {job.run_uri}: mount it with "
            "engine_options.volumes. Volumes of pod_template are mounted into the workers alone"
        )
    return None


def fileset(run_uri: str, options: KubeOptions) -> str | None:
    """The event files of a run as TensorStack names folders, `t9k://pvc/CLAIM/PATH`; None if no claim holds them."""
    volume, _ = _mount(run_uri, options)
    if volume is None or volume.claim is None:
        return None
    below = run_uri[len(volume.mount_path.rstrip("/")) :]
    parts = (
        volume.claim,
        (volume.sub_path or "").strip("/"),
        below.strip("/"),
        layout.TENSORBOARD.strip("/"),
    )
    return f"t9k://pvc/{'/'.join(filter(None, parts))}"


def _mount(run_uri: str, options: KubeOptions) -> tuple[Volume | None, dict[str, Any] | None]:
    """The volume that holds a folder, and its mount; the innermost one. None for a run that is not in a folder."""
    held = [
        (len(volume.mount_path.rstrip("/")), i, volume)
        for i, volume in enumerate(options.volumes)
        if f"{run_uri}/".startswith(f"{volume.mount_path.rstrip('/')}/")
    ]
    if not held or not run_uri.startswith("/"):
        return None, None
    _, i, volume = max(held, key=lambda one: one[:2])
    mount = {"name": f"{VOLUME_PREFIX}volume-{i}", "mountPath": volume.mount_path, "readOnly": True}
    return volume, {**mount, **({"subPath": volume.sub_path} if volume.sub_path else {})}
