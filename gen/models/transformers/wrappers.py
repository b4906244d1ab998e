"""Models inside of wrappers: torch.compile and PEFT put a forward of their own around the model's."""

from typing import TYPE_CHECKING, Any

from gen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def innermost(model: Any) -> "PreTrainedModel":
    """The transformers model that a wrapper calls; its forward names the arguments.

    Raises:
        ModelError: the wrapper has a learned prompt, whose tokens would be in the cache or the embeddings; an adapter
            that acts by all that a forward reads, as activated LoRA and Lily; or one that draws at random.
    """
    while True:
        inner = model
        if "_orig_mod" in getattr(model, "_modules", {}):  # torch.compile
            inner = model._orig_mod
        elif hasattr(type(model), "get_base_model"):  # PEFT
            _refuse_adapter(model, getattr(model, "active_peft_config", None))
            inner = model.get_base_model()
        if inner is model:
            if getattr(model, "_hf_peft_config_loaded", False):  # transformers' own add_adapter
                from peft.tuners.tuners_utils import BaseTunerLayer

                # model.active_adapters() does the same, but fails with versions of PEFT that work
                active = (part.active_adapters for part in model.modules() if isinstance(part, BaseTunerLayer))
                for name in next(active, ()):
                    _refuse_adapter(model, model.peft_config[name])
            return model
        model = inner


def _refuse_adapter(model: Any, config: Any) -> None:
    """Refuse an adapter whose effect depends on more than a token and those before it."""
    name = type(model).__name__
    peft_type: Any = getattr(config, "peft_type", "")
    kind = str(getattr(peft_type, "value", peft_type)).lower().replace("_", " ")
    if kind == "lily":
        raise ModelError(
            f"{name} has a Lily adapter, which routes by the mean over all tokens that a forward reads; a text would "
            "depend on what is read beside it. Adapters that treat each token by itself, such as LoRA, are supported."
        )
    if getattr(config, "sample_at_inference", False):
        raise ModelError(
            f"{name} has an adapter that draws at random in each forward (sample_at_inference=True), so that its texts "
            "would differ from call to call; set this to False in its config, and load it again."
        )
    if getattr(config, "is_prompt_learning", False):
        raise ModelError(
            f"{name} has {kind}, which puts learned tokens before each prompt; gen has no place for them. Adapters "
            "that change weights, such as LoRA, are supported."
        )
    if getattr(config, "alora_invocation_tokens", None):
        raise ModelError(
            f"{name} has an activated LoRA, which acts from its invocation tokens on; gen reads a text step by step, "
            "and PEFT would not find them. Adapters that always act, such as LoRA, are supported."
        )
