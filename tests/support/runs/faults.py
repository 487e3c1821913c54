"""Faults of a test cluster, by the program that CLUSTER names, and their mending."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.kubernetes.kube import typed
from tests.support.machine.patience import PATIENCE_SECONDS

_NODE_MENDS = {
    "power-off": "power-on",
    **{f"stop-{name}": f"start-{name}" for name in ("kubelet", "runtime", "proxy")},
    **dict.fromkeys(("partition", "loss", "bandwidth", "freeze", "throttle", "gpu-unhealthy"), "heal"),
}
_SERVICE_MENDS = {"stop": "start", "pause": "resume"}
_NEVER = "2000-01-01T00:00:00Z"
#: Until all operators answer after an outage of the API server, and until one's pod counts as one that hangs.
OPERATORS_SECONDS = 600.0
OPERATOR_SECONDS = 40.0
_POD_FAULTS_THAT_STAY = ("freeze", "throttle", "partition")


@dataclass(frozen=True)
class _Service:
    namespace: str
    name: str
    port: int

    @property
    def root(self) -> str:
        """The path at which the API server hands requests on to it."""
        return f"/api/v1/namespaces/{self.namespace}/services/https:{self.name}:{self.port}/proxy/"


class Faults:
    """Breaks the cluster by its own program, and mends what it has broken: others may break it at the same time."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._services: dict[str, str] = {}
        self._mends: list[tuple[str, ...]] = []
        self._nodes: set[str] = set()
        self._gpus: dict[str, int] = {}

    def node(self, node: str, fault: str, value: object = None) -> None:
        """Do something to a node: see `cluster node-fault --help`."""
        self._begin()
        self._nodes.add(node)
        if fault in _NODE_MENDS:
            self._mends.append(("node-fault", node, _NODE_MENDS[fault]))
        self._run("node-fault", node, fault, *_given(value))

    def pod(self, namespace: str, pod: str, fault: str, value: object = None) -> None:
        """Do something to a running pod: see `cluster pod-fault --help`."""
        if fault in _POD_FAULTS_THAT_STAY:
            self._mends.append(("pod-fault", "-n", namespace, pod, "heal"))
        words = ("pod-fault", "-n", namespace, pod, fault, *_given(value))
        if fault == "signal":
            self._signal(*words)
        else:
            self._run(*words)

    def apiserver(self, verb: str) -> None:
        """Stop, start, kill, pause or resume the API server, for everybody."""
        self.control_plane("kube-apiserver", verb)

    def control_plane(self, service: str, verb: str) -> None:
        """Do so to etcd, the API server, the controllers, the scheduler, DNS or this machine's way to the cluster."""
        self._begin()
        command = ("apiserver",) if service == "kube-apiserver" else ("control-plane", service)
        if verb in _SERVICE_MENDS:
            self._services[service] = _SERVICE_MENDS[verb]
        self._run(*command, verb)

    def heal(self) -> None:
        """End the faults that are on, and wait until their nodes are at work again."""
        failures = []
        restarted = {"etcd", "kube-apiserver"} & self._services.keys()
        for service, verb in [*self._services.items()]:
            command = ("apiserver",) if service == "kube-apiserver" else ("control-plane", service)
            failures += self._try(*command, verb)
        for mend in dict.fromkeys(reversed(self._mends)):
            said = self._try(*mend)
            failures += said if mend[0] != "pod-fault" else []  # the pod may be gone, and its faults with it
        if (
            restarted
        ):  # kubelets and proxies wait up to a minute until they look again, unless they begin anew
            self._nodes |= self._gpus.keys()
            for node in self._nodes:
                for fault in ("kill-proxy", "kill-kubelet"):
                    failures += self._try("node-fault", node, fault)
        mended = datetime.now(UTC)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not failures and (tired := self._nodes - self._at_work(mended)):
            if time.monotonic() > deadline:
                failures.append(f"not at work again: {', '.join(sorted(tired))}")
            time.sleep(0.2)
        failures += self._operators_answer() if restarted and not failures else []
        self._services, self._mends, self._nodes, self._gpus = {}, [], set(), {}
        assert not failures, f"the cluster may not be whole; `cluster up` mends it: {failures}"

    def _operators_answer(self) -> list[str]:
        """Wait until the API server reaches all its webhooks: an operator that lost its lease in an outage ends itself.

        Its pod is made anew, as one that ended a few times lately is started again only minutes later; and again,
        as one that began before its node's proxy knew the API server's address may hang. One operator after the
        other, first the one that every new pod must pass: who makes the others' pods in vain waits ever longer.
        """
        deadline = time.monotonic() + OPERATORS_SECONDS
        for one in self._webhooks():
            patience = 0.0
            while not self._answers(one):
                if time.monotonic() > deadline:
                    return [f"does not answer: {one.namespace}/{one.name}"]
                if time.monotonic() > patience:
                    pods = ("pods", "-n", one.namespace, "-l", self._selector(one))
                    self._run("kubectl", "delete", *pods, "--wait=false")
                    patience = time.monotonic() + OPERATOR_SECONDS
                time.sleep(0.2)
        return []

    def _answers(self, service: _Service) -> bool:
        """Whether anybody is there; a webhook's own answer to a GET of its root is that there is no such page."""
        return all("(NotFound)" in said for said in self._try("kubectl", "get", "--raw", service.root))

    def _webhooks(self) -> list[_Service]:
        """Who is asked before objects are made, first those who are asked about all pods."""
        kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        found: dict[_Service, bool] = {}
        for hook in (hook for one in self._get(kinds) for hook in one.get("webhooks", [])):
            if service := hook["clientConfig"].get("service"):
                one = _Service(service["namespace"], service["name"], service.get("port", 443))
                pods = (
                    any("pods" in rule["resources"] for rule in hook["rules"]) and not hook["objectSelector"]
                )
                found[one] = found.get(one, False) or pods
        return sorted(found, key=lambda one: (not found[one], one.namespace, one.name))

    def _selector(self, service: _Service) -> str:
        said = self._run("kubectl", "get", "service", "-n", service.namespace, service.name, "-o", "json")
        return ",".join(f"{key}={value}" for key, value in json.loads(said)["spec"]["selector"].items())

    def _begin(self) -> None:
        """Keep in mind how many GPUs the nodes have, before the first fault."""
        if not self._gpus:
            self._gpus = {one["metadata"]["name"]: _gpus(one) for one in self._get("nodes")}

    def _at_work(self, since: datetime) -> set[str]:
        """The nodes that are ready and have their GPUs, by their own words after `since`."""
        found = self._get("nodes,leases.coordination.k8s.io", "-n", "kube-node-lease")
        leases = {
            one["metadata"]["name"]: one["spec"]["renewTime"] for one in found if one["kind"] == "Lease"
        }
        nodes = {one["metadata"]["name"]: one for one in found if one["kind"] == "Node"}
        return {
            name
            for name, node in nodes.items()
            if datetime.fromisoformat(leases.get(name, _NEVER)) > since
            and _gpus(node) >= self._gpus.get(name, 0)
            and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
        }

    def _get(self, *what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._run("kubectl", "get", *what, "-o", "json"))["items"]
        return found

    def audit(self, *, user: str | None = None, since: str | None = None) -> str:
        """Lines `COUNT USER VERB RESOURCE`: what the API server has answered."""
        options = {"--user": user, "--since": since}
        return self._run(
            "audit", *(word for name, value in options.items() if value for word in (name, value))
        )

    def answered(self, user: str) -> list[dict[str, Any]]:
        """The audit log's entries of what this user has asked for, oldest first."""
        log = self.kubeconfig().parent / "control-plane" / "audit.log"
        found = (json.loads(line) for line in log.read_text().splitlines() if user in line)
        ours = [entry for entry in found if entry["user"]["username"] == user]
        return sorted(ours, key=lambda entry: str(entry["requestReceivedTimestamp"]))

    def kubeconfig(self) -> Path:
        """Of the cluster that is broken."""
        return Path(self._run("kubeconfig").strip())

    def _run(self, *words: str) -> str:
        done = typed(self._program, *words)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    def _signal(self, *words: str) -> None:
        """Signal all processes of a pod. One that ends between the look and its signal makes it look again."""
        done, gone = typed(self._program, *words), False
        while "ProcessLookupError" in done.stderr:
            done, gone = typed(self._program, *words), True
        nobody = gone and ("is running" in done.stderr or "there is no pod" in done.stderr)
        assert done.returncode == 0 or nobody, (
            f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        )

    def _try(self, *words: str) -> list[str]:
        done = typed(self._program, *words)
        return [f"{' '.join(words)}: {done.stderr.strip()}"] if done.returncode else []


def _gpus(node: dict[str, Any]) -> int:
    return int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))


def _given(value: object) -> list[str]:
    return [] if value is None else [str(value)]
