"""Dense decoders: Llama, Mistral, Qwen2, Qwen3, Gemma and what looks like them.

Decision: one reader; a family is a row of switches taken from its transformers 5.24 configuration class.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.architecture import Layer
from partitune.models.attention import grouped_query
from partitune.models.families.grouped import head_shape, shared_kv_sources, windows
from partitune.models.feedforward import dense
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.stack import FamilyReader, Stack, cuts_inside


@dataclass(frozen=True, slots=True)
class Switches:
    """How a dense family departs from Llama."""

    qkv_bias: bool = False  # always, whatever attention_bias says (Qwen2)
    output_bias: bool = True  # attention_bias also means a bias on o_proj
    head_norms: bool = False  # RMSNorm on every query and key head
    norms: int = 2  # hidden-wide norms a layer
    tied: bool = False


def reader(switches: Switches, *, note: str = "") -> FamilyReader:
    """A reader of dense models with these switches."""

    def read(fields: Fields, quantisation: Quantisation) -> Stack:
        count = fields.layers()
        shape = head_shape(fields)
        inner = fields.integer("intermediate_size")
        bias = fields.flag("attention_bias", default=False)
        mlp_bias = fields.flag("mlp_bias", default=False)
        window_of = windows(fields, count)
        sources = shared_kv_sources(fields, window_of)
        layers = []
        for index in range(count):
            module = f"model.layers.{index}"
            attention = grouped_query(
                quantisation,
                f"{module}.self_attn",
                shape,
                qkv_bias=bias or switches.qkv_bias,
                output_bias=bias and switches.output_bias,
                norm_params=2 * shape.width if switches.head_norms else 0,
                window=window_of[index],
                owns_kv=sources[index] == index,
            )
            ffn = dense(quantisation, f"{module}.mlp", shape.hidden, inner, bias=mlp_bias)
            layers.append(Layer(index, attention, ffn, switches.norms * shape.hidden))
        return Stack(
            tuple(layers), tied=switches.tied, illegal_cuts=cuts_inside(sources), notes=(note,) if note else ()
        )

    return read


LLAMA = reader(Switches())
QWEN2 = reader(Switches(qkv_bias=True, output_bias=False))
QWEN3 = reader(Switches(head_norms=True))
GEMMA2 = reader(Switches(norms=4, tied=True))
GEMMA3 = reader(Switches(head_norms=True, norms=4, tied=True))
GENERIC = reader(Switches(), note="unknown class: read as a plain dense transformer of the Llama shape")
