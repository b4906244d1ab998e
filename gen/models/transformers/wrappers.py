"""Models inside of wrappers: torch.compile and PEFT put a forward of their own around the model's."""

from typing import TYPE_CHECKING, Any

from gen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def innermost(model: Any) -> "PreTrainedModel":
    """The transformers model that a wrapper calls; its forward names the arguments.

    Raises:
        ModelError: the wrapper has a learned prompt, whose tokens would be in the cache or the embeddings, or an
            activated LoRA, which looks for its tokens in all that a forward reads.
    """
    while True:
        inner = model
        if "_orig_mod" in getattr(model, "_modules", {}):  # torch.compile
            inner = model._orig_mod
        elif hasattr(type(model), "get_base_model"):  # PEFT
            _refuse_prompts(model)
            inner = model.get_base_model()
        if inner is model:
            return model
        model = inner


def _refuse_prompts(model: Any) -> None:
    """Refuse adapters whose effect depends on more of the prompt than a forward of gen's reads."""
    name = type(model).__name__
    config: Any = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        kind = str(getattr(config.peft_type, "value", config.peft_type)).lower().replace("_", " ")
        raise ModelError(
            f"{name} has {kind}, which puts learned tokens before each prompt; gen has no place for them. Adapters "
            "that change weights, such as LoRA, are supported."
        )
    if getattr(config, "alora_invocation_tokens", None):
        raise ModelError(
            f"{name} has an activated LoRA, which acts from its invocation tokens on; gen reads a text step by step, "
            "and PEFT would not find them. Adapters that always act, such as LoRA, are supported."
        )
