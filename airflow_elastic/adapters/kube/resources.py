"""Kinds of objects, and their paths on an API server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object.

    Attributes:
        group: the API group; empty for the core one.
        version: of the API, e.g. `v1`.
        plural: as paths name it, e.g. `jobs`.
        kind: as objects name it, e.g. `Job`.
        needs: what a cluster must have installed to know it; None if every cluster knows it.
    """

    group: str
    version: str
    plural: str
    kind: str
    needs: str | None = None

    @property
    def api_version(self) -> str:
        """As objects name it: `batch/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As `kubectl get` and rights name it: `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str | None = None, part: str | None = None) -> str:
        """Path of the collection, of one object, or of a part of it such as `status`, `scale`, `log`.

        An empty namespace means objects without one, or a collection over all namespaces.
        """
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [root, self.version, *(["namespaces", namespace] if namespace else []), self.plural]
        return "/".join([*parts, *([name] if name else []), *([part] if part else [])])


PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
EVENTS = Resource("", "v1", "events", "Event")
SECRETS = Resource("", "v1", "secrets", "Secret")
JOBS = Resource("batch", "v1", "jobs", "Job")
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
