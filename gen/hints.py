"""What to write instead of an argument that people know from other libraries, and the error that says it.

Example: instead of temperature=0.7, write sampler=gen.samplers.multinomial(temperature=0.7).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from gen.errors import UnknownArgumentError, refuse_unknown, show
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler
from gen.samplers.kinds import NAMES

Hints = Mapping[tuple[str, ...], str]
"""What to write, by the names that it is for; {} is the value that came, and {name} the name."""

GENERATING: Hints = {
    ("max_tokens", "max_completion_tokens", "max_output_tokens"): "max_new_tokens={}",
    ("max_length",): "max_new_tokens=..., which does not count the prompt",
    ("stop_strings", "stop_sequences", "stop_at"): "stop={}",
    ("include_stop_str_in_output",): "include_stop={}",
    ("truncation", "truncate_prompt_tokens", "truncation_side"): 'truncate="left"',
    ("stopping_criteria",): "stop=..., or break out of the loop over gen.stream",
    ("ignore_eos",): "eos_token_id=[]",
    ("stop_token_ids",): "eos_token_id=..., all tokens that end a text, the model's own too",
    ("reasoning_effort", "thinking_budget", "thinking_token_budget"): "thinking=..., the most tokens of a thought",
    ("messages", "prompts", "inputs", "input_ids", "text", "input"): "it as the prompt, the second argument",
    ("response_format", "schema", "json_schema", "guided_json", "response_model", "structured_outputs"): (
        "a type, or gen.json_schema(...), as the third argument"
    ),
    ("regex", "guided_regex"): "gen.regex(...) as the third argument",
    ("choices", "guided_choice"): "gen.choice([...]) as the third argument",
    ("grammar", "guided_grammar"): "gen.grammar(...) as the third argument",
    ("tools", "documents", "chat_template", "add_generation_prompt", "enable_thinking"): (
        "chat_template_kwargs=... with it as a key"
    ),
    ("system", "system_prompt", "instructions"): 'a message {{"role": "system", "content": {}}} in the prompt',
    ("logprobs", "output_scores", "output_logits"): "details=True, top_logprobs=...",
    ("return_dict_in_generate", "return_full_text"): "details=True",
    ("streamer", "stream"): "gen.stream instead, or gen.astream",
    ("max_retries", "num_retries"): "retries={}",
    ("generator", "rng", "random_state", "random_seed"): "seed=...",
    ("generation_config", "sampling_params"): "its parts: sampler=..., max_new_tokens=..., stop=...",
    ("device", "dtype", "torch_dtype", "device_map"): "it in gen.load",
    ("batch_size",): "gen.generate_iter(rows=...) or gen.Engine(rows=...), or leave it out",
    ("attention_mask", "pad_token_id", "use_cache"): "nothing; gen sees to it",
}
STREAMING: Hints = {  # instead of GENERATING's, for functions that return streams
    ("details", "return_dict_in_generate", "return_full_text"): "completion() of the stream, at its end",
    ("logprobs", "output_scores", "output_logits"): "top_logprobs=..., and read completion() of the stream",
    ("retries", "max_retries", "num_retries"): (
        "gen.generate or an engine's generate instead: a stream has shown its text when its type refuses it"
    ),
    ("streamer", "stream"): "nothing; it is a stream",
}
LOADING: Hints = {
    ("torch_dtype",): "dtype={}",
    ("load_in_8bit", "load_in_4bit"): "quantization_config=transformers.BitsAndBytesConfig({name}={})",
    ("device_maps", "parallelize", "tensor_parallel_size", "tp_plan"): 'device_map="auto"',
    (
        *("max_memory", "offload_folder", "offload_state_dict", "config", "state_dict", "subfolder", "variant"),
        *("model_kwargs", "tokenizer_kwargs", "model_class", "use_safetensors", "ignore_mismatched_sizes"),
    ): "nothing of the kind; load it with transformers, for gen.from_transformers or gen.from_transformers_encoder",
    ("tokenizer", "processor"): "gen.from_transformers(model, tokenizer) where they are loaded already",
    ("gguf_file", "filename"): "the path of the file as the first argument",
    ("use_flash_attention_2",): 'attn_implementation="flash_attention_2"',
    ("token", "use_auth_token"): "it into the environment variable HF_TOKEN",
    ("cache_dir",): "it into the environment variable HF_HOME",
    ("local_files_only",): "HF_HUB_OFFLINE=1 into the environment",
    ("low_cpu_mem_usage", "use_fast", "torchscript", "return_dict"): "nothing; gen sees to it",
    ("max_model_len", "max_seq_len", "n_ctx", "max_position_embeddings"): "context_length={}",
    ("gpu_memory_utilization",): "gen.generate(max_batch_tokens=...)",
    ("n_gpu_layers",): 'device="cuda:0"',
    ("quantization", "quantize"): "quantization_config=..., one of transformers'",
    ("adapter", "lora", "peft_model_id"): "gen.load(directory) of the adapter, whose config names the base model",
}
_SETTINGS = {  # settings of samplers, by the names that transformers and the OpenAI API give them
    "num_beams": "beams",
    "n": "samples",
    "num_samples": "samples",
    "bad_words_ids": "bad_words",
    "min_length": "min_new_tokens",
    "min_tokens": "min_new_tokens",
}
_P = ParamSpec("_P")
_R = TypeVar("_R")


def explains_unknown(hints: Hints) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function refuse unknown arguments with an error that says what to write instead."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = [*signature(function).parameters]

        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            refuse_unknown_arguments(function.__name__, kwargs, known, hints)
            return function(*args, **kwargs)

        return call

    return decorate


def refuse_unknown_arguments(
    function: str, given: Mapping[str, Any], known: Sequence[str], hints: Hints = GENERATING
) -> None:
    """Raise an UnknownArgumentError that says what to write instead, if a given argument is not known."""
    unknown = {name: value for name, value in given.items() if name not in known}
    if not unknown:
        return
    by_name = {name: text for names, text in hints.items() for name in names}
    if hints is GENERATING and "details" not in known:
        by_name |= {name: text for names, text in STREAMING.items() for name in names}
    texts = {name: by_name[name] for name in by_name if name in unknown and _is_known(by_name[name], known)}
    instead = [text.format(show(unknown[name], 40), name=name) for name, text in texts.items()]
    if hints is GENERATING and (samplers := ", or ".join(_samplers(unknown))):
        instead.append(samplers)
    if not instead:
        refuse_unknown(function, unknown, known)
    names = ", ".join(show(name, 40).strip("'") for name in unknown)
    raise UnknownArgumentError(f"{function} takes no {names}; write {', and '.join(instead)}.")


def _is_known(advice: str, known: Sequence[str]) -> bool:
    """Whether a function takes the argument with which advice begins, if it does."""
    argument = re.match(r"(\w+)=", advice)
    return argument is None or argument[1] in known


def _samplers(unknown: Mapping[str, Any]) -> Iterator[str]:
    """The samplers that have these settings."""
    settings = {_SETTINGS.get(name, name): value for name, value in unknown.items()}
    if isinstance(top_k := settings.get("top_k"), int) and top_k < 1:  # off, as transformers and vLLM write it
        settings["top_k"] = None
    chosen: list[Any] = [MultinomialSampler, BeamSearchSampler]
    if settings.keys() & {"beams", "length_penalty", "early_stopping"}:
        chosen = [BeamSearchSampler, MultinomialSampler]
    elif settings.get("do_sample") is False:
        chosen = [GreedySampler]
    sampled = "do_sample" in settings
    for sampler in chosen:
        own = {field.name for field in fields(sampler) if field.init} & settings.keys()
        if own or sampled:
            written = ", ".join(f"{name}={show(settings.pop(name), 40)}" for name in [*settings] if name in own)
            yield f"sampler=gen.samplers.{NAMES[sampler]}({written})"
        sampled = False
