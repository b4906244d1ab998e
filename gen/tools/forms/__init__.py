"""How the families of models write calls of tools: a file for each, found from the chat template."""

import re
from dataclasses import replace

from gen.constraints.composing.trees import Calls
from gen.constraints.output_types import either
from gen.constraints.plans import read_tree
from gen.errors import ConstraintError
from gen.tokens.thoughts import marks_of
from gen.tokens.tokenizers import Tokenizer
from gen.tools.calls import FORMATS, ToolCallsType
from gen.tools.forms.deepseek import DeepSeek
from gen.tools.forms.form import Form, answer_of
from gen.tools.forms.glm import Glm
from gen.tools.forms.gpt_oss import GptOss
from gen.tools.forms.hermes import Hermes
from gen.tools.forms.kimi import Kimi
from gen.tools.forms.llama3 import Llama3
from gen.tools.forms.minimax import MiniMax
from gen.tools.forms.mistral import Mistral
from gen.tools.forms.pythonic import Pythonic
from gen.tools.forms.qwen3_coder import Qwen3Coder

_FORMS: dict[str, type[Form]] = dict(
    zip(FORMATS, (Hermes, Llama3, Mistral, GptOss, Qwen3Coder, DeepSeek, Glm, Kimi, MiniMax, Pythonic), strict=True)
)
_FOUND_BY = (  # what a template with tools has, and the form that it is written in; the first that fits
    (("<|channel|>", "<|message|>"), "gpt-oss"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<minimax:tool_call>",), "minimax"),
    (("tool\u2581calls\u2581begin",), "deepseek"),
    (("<|tool_calls_section_begin|>",), "kimi"),
    (("<tool_call>", "<function="), "qwen3-coder"),
    (("<tool_call>", "<arg_key>"), "glm"),
    (("<tool_call>",), "hermes"),
    (("<|tool_call_start|>",), "pythonic"),
    (("<|tool_list_start|>",), "pythonic"),
    (("func_name1(",), "pythonic"),
    (("<|python_tag|>",), "llama3"),
    (("<|start_header_id|>", '"parameters": '), "llama3"),
)


def tree_of(asked: ToolCallsType, tokenizer: Tokenizer) -> Calls:
    """The tree of tool calls for a tokenizer.

    Raises:
        ConstraintError: gen cannot tell how the template writes calls, the vocabulary lacks special tokens of the form,
            or the form cannot write a tool.
    """
    template = tokenizer.template_for_tools
    specials = frozenset(tokenizer.special_tokens.values())
    name = asked.format or form_of(template)
    marks = marks_of(template)
    left_out = (marks.opens, marks.closes) if marks is not None and marks.kind == "tags" else ()
    kind = _FORMS[name]
    if lacking := [one for one in kind.specials if one not in specials]:
        raise ConstraintError(
            f"the format {name!r} needs the special tokens {', '.join(lacking)}, which this tokenizer lacks; give "
            "another format to gen.tool_calls."
        )
    form = kind(name, asked, template, specials, left_out)
    main, read = form.write(), form.read()
    if asked.answer is not None and read is None:
        main = either(main, answer_of(asked.answer))
    heads = form.heads() if asked.answer is None else replace(form.heads(), after_text=False)
    return Calls(read_tree(main), read_tree(read or main), heads if asked.tools else None)


def form_of(template: str) -> str:
    """The name of the form in which a chat template writes calls.

    Raises:
        ConstraintError: the template's form is none that gen knows.
    """
    for marks, name in _FOUND_BY:
        if all(mark in template for mark in marks):
            return name
    if not re.search(r"\btools\b", template):
        return "hermes"
    raise ConstraintError(
        f"gen cannot tell how this model's chat template writes calls of tools; give gen.tool_calls a format, one of "
        f"{', '.join(FORMATS)}."
    )
