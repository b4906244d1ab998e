"""Numbers for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, generate_latest


class Metrics:
    """What a server counts; each application has its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "gen_requests", "Requests that were answered.", ["endpoint", "status"], registry=self._registry
        )
        self.ignored_fields = Counter(
            "gen_ignored_fields", "Fields of requests that nobody knows.", ["endpoint"], registry=self._registry
        )

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
