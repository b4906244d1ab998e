"""What to write instead of an argument that people know from other libraries: one short table for all functions.

Example: instead of temperature=0.7, write sampler=gen.samplers.multinomial(temperature=0.7).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from gen.arguments import refuse_with_advice, with_advice
from gen.errors import show
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_SETTINGS = {  # settings of samplers, by the names that transformers and the OpenAI API give them
    "num_beams": "beams",
    "n": "samples",
    "num_samples": "samples",
    "bad_words_ids": "bad_words",
    "min_length": "min_new_tokens",
    "min_tokens": "min_new_tokens",
}
_INSTEAD = {
    ("max_tokens", "max_completion_tokens", "max_output_tokens"): "max_new_tokens={}",
    ("max_length",): "max_new_tokens=..., which does not count the prompt",
    ("stop_strings", "stop_sequences", "stop_at"): "stop={}",
    ("include_stop_str_in_output",): "include_stop={}",
    ("truncation", "truncate_prompt_tokens", "truncation_side"): 'truncate="left"',
    ("stopping_criteria",): "stop=..., or break out of the loop over gen.stream",
    ("messages", "prompts", "inputs", "input_ids", "text", "input"): "it as the prompt, the second argument",
    (
        "response_format",
        "schema",
        "json_schema",
        "guided_json",
        "response_model",
    ): "a type, or gen.json_schema(...), as the third argument",
    ("regex", "guided_regex"): "gen.regex(...) as the third argument",
    ("choices", "guided_choice"): "gen.choice([...]) as the third argument",
    ("grammar", "guided_grammar"): "gen.grammar(...) as the third argument",
    (
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "enable_thinking",
    ): "chat_template_kwargs=... with it as a key",
    ("system", "system_prompt", "instructions"): 'a message {{"role": "system", "content": {}}} in the prompt',
    ("logprobs", "output_scores", "output_logits"): "details=True, top_logprobs=...",
    ("return_dict_in_generate", "return_full_text"): "details=True",
    ("streamer", "stream"): "gen.stream instead",
    ("details",): "completion() of the stream, at its end",
    ("generator", "rng", "random_state", "random_seed"): "seed=...",
    ("generation_config",): "its parts: sampler=..., max_new_tokens=..., stop=...",
    ("device", "dtype", "torch_dtype", "device_map"): "it in gen.load",
    ("batch_size",): "max_batch_tokens=..., or leave it out",
    ("attention_mask", "pad_token_id", "use_cache"): "nothing; gen sees to it",
}


def explains_unknown(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function that generates refuse unknown arguments, with an error that says what to write instead."""
    return with_advice(generating_advice)(function)


def refuse_unknown_arguments(function: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise an UnknownArgumentError that says what to write instead, if a given argument is not known."""
    refuse_with_advice(function, given, known, generating_advice)


def generating_advice(unknown: Mapping[str, Any]) -> Iterator[str]:
    """What to write instead of arguments that a function which generates does not have."""
    yield from _advice(unknown)
    if samplers := ", or ".join(_samplers(unknown)):
        yield samplers


def _advice(unknown: Mapping[str, Any]) -> Iterator[str]:
    for names, text in _INSTEAD.items():
        for name in names:
            if name in unknown:
                yield text.format(show(unknown[name], 40))


def _samplers(unknown: Mapping[str, Any]) -> Iterator[str]:
    """The samplers that have these settings."""
    settings = {_SETTINGS.get(name, name): value for name, value in unknown.items()}
    chosen: list[Any] = [MultinomialSampler, BeamSearchSampler]
    if settings.keys() & {"beams", "length_penalty", "early_stopping"}:
        chosen = [BeamSearchSampler, MultinomialSampler]
    elif settings.get("do_sample") is False:
        chosen = [GreedySampler]
    made = {GreedySampler: "greedy", MultinomialSampler: "multinomial", BeamSearchSampler: "beam_search"}
    sampled = "do_sample" in settings
    for sampler in chosen:
        own = {field.name for field in fields(sampler) if field.init} & settings.keys()
        if own or sampled:
            written = ", ".join(f"{name}={show(settings.pop(name), 40)}" for name in [*settings] if name in own)
            yield f"sampler=gen.samplers.{made[sampler]}({written})"
        sampled = False
