"""Encoders, decoders, generation, text with images: transformers."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, draw_tokens, length_of, prepare_module

_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 200,
}


def _add_encoder(name: str, build: Callable[[Any], Any], varies: bool) -> None:
    @add_program(f"transformers/{name}{'_lengths' if varies else ''}", varies=varies)
    def make(device: str) -> Infer:
        import transformers

        torch.manual_seed(0)
        network = prepare_module(build(transformers), device)

        def infer(number: int) -> Any:
            ids = draw_tokens(number, length_of(number) if varies else 12, 200).to(device)
            with torch.no_grad():
                return network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.cpu()

        return infer


for _varies in (False, True):
    _add_encoder("bert", lambda t: t.BertModel(t.BertConfig(**_SMALL)), _varies)
_add_encoder("roberta", lambda t: t.RobertaModel(t.RobertaConfig(**_SMALL)), True)
_add_encoder("electra", lambda t: t.ElectraModel(t.ElectraConfig(embedding_size=32, **_SMALL)), False)
_add_encoder("albert", lambda t: t.AlbertModel(t.AlbertConfig(embedding_size=32, **_SMALL)), False)
_add_encoder("mpnet", lambda t: t.MPNetModel(t.MPNetConfig(**_SMALL)), False)
_add_encoder("deberta_v2", lambda t: t.DebertaV2Model(t.DebertaV2Config(**_SMALL)), True)
_add_encoder(
    "distilbert",
    lambda t: t.DistilBertModel(t.DistilBertConfig(dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=200)),
    True,
)
_add_encoder(
    "t5_encoder",
    lambda t: t.T5EncoderModel(t.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=200)),
    True,
)
_add_encoder("xlm_roberta", lambda t: t.XLMRobertaModel(t.XLMRobertaConfig(**_SMALL)), False)


def _build_causal(transformers: Any, name: str) -> Any:
    small = {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, **small))
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, **sizes))
    if name == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(num_key_value_heads=2, **small, **sizes))
    if name == "gpt_neox":
        return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**small, **sizes))
    if name == "opt":
        return transformers.OPTForCausalLM(
            transformers.OPTConfig(
                ffn_dim=128, word_embed_proj_dim=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, **small
            )
        )
    return transformers.MambaForCausalLM(transformers.MambaConfig(hidden_size=64, num_hidden_layers=2, **small))


def _add_generation(name: str, count: int, lengths: Tuple[int, ...]) -> None:
    @add_program(f"transformers/{name}_generate_{count}{'_lengths' if len(lengths) > 1 else ''}", varies=True)
    def make(device: str) -> Infer:
        import transformers

        torch.manual_seed(0)
        network = prepare_module(_build_causal(transformers, name), device)

        def infer(number: int) -> Any:
            ids = draw_tokens(number, length_of(number, lengths), 200).to(device)
            with torch.no_grad():
                generated = network.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
                )
            return generated.cpu()

        return infer


_add_generation("gpt2", 16, (8,))
_add_generation("gpt2", 8, (6, 9, 12))
_add_generation("llama", 8, (8,))
_add_generation("qwen2", 8, (8,))
_add_generation("gpt_neox", 8, (8,))
_add_generation("opt", 8, (8,))
_add_generation("mamba", 8, (8,))


@add_program("transformers/llama_token_by_token", varies=True)
def _make_cached(device: str) -> Infer:
    """One token an inference, on a cache that grows by one and begins anew after a while."""
    import transformers

    torch.manual_seed(0)
    network = prepare_module(_build_causal(transformers, "llama"), device)
    state: Any = {}

    def infer(number: int) -> Any:
        if number % 12 == 0:
            state.clear()
        ids = draw_tokens(number, 1, 200).to(device)
        with torch.no_grad():
            out = network(input_ids=ids, past_key_values=state.get("past"), use_cache=True)
        state["past"] = out.past_key_values
        return out.logits.cpu()

    return infer


@add_program("transformers/t5_generate", varies=True)
def _make_t5(device: str) -> Infer:
    import transformers

    torch.manual_seed(0)
    network = prepare_module(
        transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                d_model=64,
                d_kv=16,
                d_ff=128,
                num_layers=2,
                num_heads=4,
                vocab_size=200,
                decoder_start_token_id=0,
                eos_token_id=None,
            )
        ),
        device,
    )

    def infer(number: int) -> Any:
        with torch.no_grad():
            return network.generate(draw_tokens(number, 10, 200).to(device), max_new_tokens=8, do_sample=False).cpu()

    return infer


@add_program("transformers/bart_generate_beams", varies=True)
def _make_bart(device: str) -> Infer:
    import transformers

    torch.manual_seed(0)
    network = prepare_module(
        transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                d_model=64,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=128,
                decoder_ffn_dim=128,
                vocab_size=200,
                max_position_embeddings=64,
                forced_eos_token_id=None,
            )
        ),
        device,
    )

    def infer(number: int) -> Any:
        ids = draw_tokens(number, 10, 200).to(device)
        with torch.no_grad():
            return network.generate(ids, max_new_tokens=6, num_beams=2, do_sample=False).cpu()

    return infer


def _clip_like(name: str) -> None:
    @add_program(f"transformers/{name}", varies=True)
    def make(device: str) -> Infer:
        import transformers as t

        torch.manual_seed(0)
        text = {**_SMALL, "max_position_embeddings": 32, "eos_token_id": 2}
        vision = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "image_size": 32,
            "patch_size": 8,
        }
        config, model = (t.CLIPConfig, t.CLIPModel) if name == "clip" else (t.SiglipConfig, t.SiglipModel)
        extra = {"projection_dim": 32} if name == "clip" else {}
        network = prepare_module(model(config(text_config=text, vision_config=vision, **extra)), device)

        def infer(number: int) -> Any:
            ids = draw_tokens(number, length_of(number), 200, rows=2)
            ids[:, -1] = 2
            with torch.no_grad():
                out = network(input_ids=ids.to(device), pixel_values=draw_noise(number, 1, 3, 32, 32).to(device))
            return out.logits_per_image.cpu()

        return infer


_clip_like("clip")
_clip_like("siglip")
