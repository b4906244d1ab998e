"""Numbers for Prometheus, by the names that vLLM's dashboards have where they mean the same."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gen.engine import Engine
from gen.loop.prefixes.tree import tree_of
from gen.server.accounts import Account

_FIRST = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # seconds
_BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_WHOLE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_TIMES = {
    "time_to_first_token_seconds": ("Time from a request to the first token of each of its texts.", _FIRST),
    "inter_token_latency_seconds": ("Mean time between the tokens of a text.", _BETWEEN),
    "request_queue_time_seconds": ("Time that a text waits for a row.", _FIRST),
    "e2e_request_latency_seconds": ("Time from a request to the end of its answer.", _WHOLE),
}


class Metrics:
    """The metrics of a server; each application has its own.

    Args:
        name: the model's, as label.

    Attributes:
        registry: holds them.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_OfEngine(engine, name))
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "gen_requests",
            "Requests that have ended, streams by how they ended: 499 if the client has left.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._ignored = Counter(
            "gen_ignored_fields", "Fields of requests that changed nothing.", ["endpoint"], registry=self.registry
        )
        self._queries, self._hits = (
            Counter(f"vllm:prefix_cache_{what}", help, ["model_name"], registry=self.registry).labels(name)
            for what, help in (
                ("queries", "Tokens of the prompts of requests that have ended."),
                ("hits", "Those of them that were in the KV cache already."),
            )
        )
        self._times = {
            key: Histogram(f"vllm:{key}", help, ["model_name"], registry=self.registry, buckets=buckets).labels(name)
            for key, (help, buckets) in _TIMES.items()
        }

    def ended(self, account: Account) -> None:
        """Count a request that has ended."""
        endpoint = str(account.endpoint)
        known = not endpoint.startswith("/")  # clients choose other paths
        self._requests.labels(endpoint if known else "other", account.status).inc()
        if account.ignored:
            self._ignored.labels(account.endpoint).inc(len(account.ignored))
        if account.texts is None:
            return
        self._times["e2e_request_latency_seconds"].observe(account.seconds())
        made = account.texts.progress()
        self._queries.inc(sum(one.prompt_tokens for one in made))
        self._hits.inc(sum(one.cached_tokens for one in made))
        for one in made:
            if one.waited is not None:
                self._times["request_queue_time_seconds"].observe(one.waited)
            if one.first_token is not None:
                self._times["time_to_first_token_seconds"].observe(one.first_token)
                if one.tokens > 1:
                    between = (one.seconds - one.first_token) / (one.tokens - 1)
                    self._times["inter_token_latency_seconds"].observe(between)

    def text(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        return generate_latest(self.registry)


class _OfEngine(Collector):
    """The engine's own numbers, read when Prometheus asks for them."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def collect(self) -> Iterable[Metric]:
        import gen

        stats, model = self._engine.stats(), self._engine.model
        tree = tree_of(model)
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for kind, name, help, value in (
            (gauge, "vllm:num_requests_running", "Texts that are being generated.", stats.running),
            (gauge, "vllm:num_requests_waiting", "Texts that wait for a row.", stats.waiting),
            (gauge, "gen_compiling_requests", "Texts that wait for their output type.", stats.compiling),
            (gauge, "gen_progress_age_seconds", "Time since the engine last made progress.", stats.progress_age),
            (gauge, "gen_prefix_cache_bytes", "Memory of what is kept of prompts.", tree.nbytes if tree else 0),
            (counter, "vllm:generation_tokens", "Tokens of all texts.", stats.tokens),
            (counter, "vllm:prompt_tokens", "Tokens of the prompts of all texts.", stats.prompt_tokens),
            (counter, "gen_steps", "Turns of the engine's loop.", stats.steps),
        ):
            found = kind(name, help, labels=["model_name"])
            found.add_metric([self._name], value)
            yield found
        placed = str(model.placement.logits_device)
        yield InfoMetricFamily(
            "gen_build", "What runs.", {"version": gen.__version__, "model_name": self._name, "device": placed}
        )
