"""`gen serve`: a model behind OpenAI's and Anthropic's protocols."""

import gc
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from gen.cli.options import DEVICE, SPECULATE, LoadingOptions, flag, option, with_options
from gen.cli.values import read_speculate
from gen.errors import ArgumentError, GenError, ModelError, show_path

if TYPE_CHECKING:
    from gen.engine import Engine


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Arguments of `gen.Engine`, by their names."""

    rows: int = option("Limits", "Run N texts at once.", "N", min=1, default=32)
    max_waiting: int = option(
        "Limits", "Let N more texts wait; further clients are told to ask again.", "N", min=0, default=256
    )
    max_batch_tokens: int | None = option(
        "Limits", "Have room for N tokens. If you give none: what memory has room for.", "N", min=1
    )
    admit_tokens: int | None = option(
        "Limits", "Read at most N tokens of new prompts between steps of running texts.", "N", min=1
    )
    prefix_bytes: int | None = option(
        "Limits", "Keep N bytes of KV cache for later prompts. If you give none: a part of memory.", "N", min=0
    )
    exact: bool = flag("Model", "Give the same bits whatever runs beside a text; it takes longer.", "--exact")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Settings of `gen.server.app`, by their names."""

    max_new_tokens: int | None = option(
        "Limits", "Make at most N tokens for a text. If you give none: what the context leaves.", "N", min=1
    )
    max_prompts: int = option("Limits", "Refuse requests for more than N texts.", "N", min=1, default=2048)
    max_body_mb: float = option("Limits", "Refuse larger requests.", "MIB", min=0.001, default=8)
    max_schema_kb: float = option("Limits", "Refuse requests with larger schemas.", "KIB", min=0.001, default=256)
    max_image_mpx: float = option(
        "Limits", "Refuse images with more than MPX million pixels.", "MPX", min=0.001, default=40
    )
    request_timeout: float = option("Limits", "Give up requests that take longer.", "SECONDS", min=0.001, default=600)
    stall_timeout: float = option(
        "Limits", "Be unhealthy after SECONDS without a step while there is work.", "SECONDS", min=0.001, default=300
    )
    log_texts: bool = flag("Server", "Let the log have the texts of requests, too.", "--log-texts")
    strict: bool = flag("Server", "Refuse requests with unknown fields instead of ignoring these.", "--strict")


@with_options
def serve_command(
    model: str = typer.Argument(..., metavar="MODEL", help='A directory, a GGUF file, a name on the Hub, or "demo".'),
    *,
    name: list[str] | None = option(
        "Model", "The model's name for clients. You can repeat it. If you give none: the folder's.", "NAME"
    ),
    embedder: str | None = option("Model", "An encoder for /v1/embeddings.", "PATH"),
    device: str | None = DEVICE,
    loading: LoadingOptions,
    device_map: str | None = option("Model", '"auto" spreads the model over the devices.', "MAP"),
    chat_template: Path | None = option("Model", "Use the chat template in FILE instead of the model's own.", "FILE"),
    host: str = option("Server", "Listen on this address.", "HOST", default="127.0.0.1"),
    port: int = option("Server", "Listen on this port; 0 is any free port.", "PORT", min=0, max=65535, default=8000),
    api_key: str | None = option(
        "Server", "Answer only clients that send KEY. If you give none: GEN_API_KEY of the environment.", "KEY"
    ),
    api_keys: Path | None = option(
        "Server", "Answer only clients with a key of FILE, in TOML: [keys.NAME], key, most_running.", "FILE"
    ),
    metrics_port: int | None = option(
        "Server",
        "Serve /metrics without a key on this port. If you give none: it needs a key.",
        "PORT",
        min=0,
        max=65535,
    ),
    otel: bool = flag("Server", "Send a span for each request to OTEL_EXPORTER_OTLP_ENDPOINT.", "--otel"),
    log_format: Literal["text", "json"] = option("Server", "How a line of the log is written.", None, default="text"),
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "Server", "Log from this level on; a request that has ended is info.", None, default="info"
    ),
    cors_origin: list[str] | None = option("Server", "Let pages of URL call the server. You can repeat it.", "URL"),
    running: EngineOptions,
    serving: ServerOptions,
    speculate: Literal["auto", "on", "off"] = SPECULATE,
    shutdown_timeout: float = option(
        "Limits", "Let requests go on for SECONDS after SIGTERM or Ctrl-C.", "SECONDS", min=0, default=30
    ),
) -> None:
    """Serve a model to clients of OpenAI and Anthropic; its texts are those of `gen generate`.

    The server listens at once, and answers 503 until the model is there. SIGTERM or Ctrl-C end it once the requests
    under way are answered.
    """
    try:
        from gen.server.accounts import LOG, write_logs
        from gen.server.keys import check_key, read_keys
        from gen.server.process import Process, listen
        from gen.server.settings import Settings, name_of

        if otel:
            from gen.server.tracing import tracer_of_environment
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gen"):
            raise
        extras = "serve,otel" if error.name.startswith("opentelemetry") else "serve"
        raise ModelError(f"gen serve needs {error.name}: pip install 'gen-torch[{extras}]'") from error

    key = os.environ.get("GEN_API_KEY") if api_key is None else api_key
    if key is not None:
        try:
            check_key(key)
        except ArgumentError as error:
            raise GenError(f"--api-key or GEN_API_KEY: {error}") from error
    keys = [] if api_keys is None else read_keys(api_keys)
    write_logs(log_format, log_level.upper())
    template = None if chat_template is None else _read(chat_template)
    names = name or [name_of(model)]
    given = {"names": names, "api_key": key, "keys": keys, "cors_origins": cors_origin or [], **vars(serving)}
    Settings(**given)  # what cannot be used is told before the model loads
    if metrics_port == port != 0:
        raise ArgumentError("--metrics-port must be another port than the server's own.")
    if metrics_port is not None:
        listen(host, metrics_port).close()
    listening = listen(host, port)
    at = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    if key is None and not keys and not _is_loopback(host):
        LOG.warning("everybody who reaches %s may use the server; give --api-key to require a key.", at)
    LOG.info("listens on %s, and loads %s.", at, model)

    def load() -> "tuple[Any, Engine]":
        from prometheus_client import start_http_server

        import gen

        # it is small, so that its errors come soon, and device_map="auto" leaves room for it
        encoder = None if embedder is None else gen.load_encoder(embedder, device=device)
        loaded = loading.load_model(model, device, device_map=device_map)
        if template is not None:
            loaded.tokenizer.use_chat_template(template)
        engine = gen.Engine(loaded, speculate=read_speculate(speculate), **vars(running))
        app = gen.server.app(
            engine,
            embedder=encoder,
            embedder_names=[] if embedder is None else [name_of(embedder)],
            tracer=tracer_of_environment() if otel else None,
            **given,
        )
        app.state.served.compiling.begin()
        gc.collect()
        gc.freeze()  # these objects stay for good; without this every full collection would look through them
        if metrics_port is not None:
            metrics, _ = start_http_server(metrics_port, host, app.state.metrics.registry)
            LOG.info("serves metrics on port %d.", metrics.server_port)
        told = ", ".join(f"{size / 1e6:.0f} MB for {what}" for what, size in app.state.served.memory().items())
        LOG.info("serves %s on %s, from %s; memory is at most %s.", ", ".join(names), at, loaded.placement, told)
        return app, engine

    raise typer.Exit(Process(load, shutdown_timeout=shutdown_timeout).run(listening))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise GenError(f"--chat-template {show_path(path)} cannot be read: {error}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
