"""Numbers for Prometheus."""

from collections.abc import Iterable
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gen.engine import Engine

_FIRST = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # seconds
_BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """The metrics of a server; each application has its own."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfEngine(engine))
        self._requests = Counter(
            "gen_requests",
            "Requests that have ended, streams by how they ended: 499 if the client has left.",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self.ignored_fields = Counter(
            "gen_ignored_fields", "Unknown fields of requests.", ["endpoint"], registry=self._registry
        )
        self._first = Histogram(
            "gen_time_to_first_token_seconds",
            "Time from a request to the first event of each of its texts, if they are streamed.",
            ["endpoint"],
            registry=self._registry,
            buckets=_FIRST,
        )
        self._between = Histogram(
            "gen_time_between_tokens_seconds",
            "Mean time between the tokens of a text that is streamed.",
            ["endpoint"],
            registry=self._registry,
            buckets=_BETWEEN,
        )

    def clock(self, endpoint: str) -> "Clock":
        """A clock for the texts of a request that comes now."""
        return Clock(self._first.labels(endpoint), self._between.labels(endpoint))

    def ended(self, endpoint: str, status: int) -> None:
        """Count a request that has ended."""
        self._requests.labels(endpoint, status).inc()

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        return generate_latest(self._registry)


class Clock:
    """Times the texts of one request."""

    def __init__(self, first: Histogram, between: Histogram) -> None:
        self._first, self._between = first, between
        self._begun = monotonic()
        self._texts: dict[int, tuple[float, float]] = {}  # when each text has first and last grown

    def grown(self, number: int) -> None:
        """Note that a text has grown."""
        now = monotonic()
        if number not in self._texts:
            self._first.observe(now - self._begun)
        self._texts[number] = self._texts.get(number, (now, now))[0], now

    def ended(self, number: int, tokens: int) -> None:
        """Note that a text has ended, with this many tokens."""
        if number in self._texts and tokens > 1:
            first, last = self._texts[number]
            self._between.observe((last - first) / (tokens - 1))


class _OfEngine(Collector):
    """The engine's own numbers, read when Prometheus asks for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield gauge("gen_running_rows", "Texts that are being generated.", stats.running)
        yield gauge("gen_waiting_requests", "Texts that wait for a row.", stats.waiting)
        yield gauge("gen_compiling_requests", "Texts that wait for their output type.", stats.compiling)
        yield gauge("gen_progress_age_seconds", "Time since the engine last made progress.", stats.progress_age)
        yield counter("gen_generated_tokens", "Tokens of all texts.", stats.tokens)
        yield counter("gen_prompt_tokens", "Tokens of the prompts of all texts.", stats.prompt_tokens)
        yield counter("gen_steps", "Turns of the engine's loop.", stats.steps)
