"""Speech: transformers, openai-whisper, silero-vad."""

from __future__ import annotations

from typing import Any

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, draw_tokens, length_of, prepare_module


def _add_wave(name: str, varies: bool) -> None:
    @add_program(f"transformers/{name}{'_lengths' if varies else ''}", varies=varies)
    def make(device: str) -> Infer:
        import transformers as t

        torch.manual_seed(0)
        sizes = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "conv_dim": (32, 32, 32),
            "conv_stride": (5, 2, 2),
            "conv_kernel": (10, 3, 3),
            "vocab_size": 32,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        }
        config, model = (t.Wav2Vec2Config, t.Wav2Vec2ForCTC) if name == "wav2vec2" else (t.HubertConfig, t.HubertModel)
        network = prepare_module(model(config(**sizes)), device)

        def infer(number: int) -> Any:
            samples = 800 + (160 * length_of(number) if varies else 0)
            with torch.no_grad():
                return network(draw_noise(number, 1, samples).to(device))[0].cpu()

        return infer


_add_wave("wav2vec2", False)
_add_wave("wav2vec2", True)
_add_wave("hubert", True)


@add_program("transformers/whisper_generate", varies=True)
def _make_whisper(device: str) -> Infer:
    import transformers as t

    torch.manual_seed(0)
    network = prepare_module(
        t.WhisperForConditionalGeneration(
            t.WhisperConfig(
                d_model=64,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=128,
                decoder_ffn_dim=128,
                num_mel_bins=16,
                max_source_positions=50,
                vocab_size=200,
                max_target_positions=64,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=199,
                decoder_start_token_id=2,
                suppress_tokens=None,
                begin_suppress_tokens=None,
            )
        ),
        device,
    )

    def infer(number: int) -> Any:
        features = draw_noise(number, 1, 16, 100).to(device)
        with torch.no_grad():
            return network.generate(features, max_new_tokens=6, do_sample=False, return_timestamps=False).cpu()

    return infer


def _build_model(device: str) -> Any:
    import whisper

    torch.manual_seed(0)
    dims = whisper.model.ModelDimensions(
        n_mels=80,
        n_audio_ctx=50,
        n_audio_state=64,
        n_audio_head=4,
        n_audio_layer=2,
        n_vocab=200,
        n_text_ctx=32,
        n_text_state=64,
        n_text_head=4,
        n_text_layer=2,
    )
    network = whisper.model.Whisper(dims)
    torch.nn.init.normal_(network.decoder.positional_embedding, std=0.1)  # the package leaves it as memory was
    return prepare_module(network, device)


@add_program("whisper/encoder")
def _make_encoder(device: str) -> Infer:
    network = _build_model(device)

    def infer(number: int) -> Any:
        with torch.no_grad():
            return network.encoder(draw_noise(number, 1, 80, 100).to(device)).cpu()

    return infer


@add_program("whisper/greedy_loop", varies=True)
def _make_greedy(device: str) -> Infer:
    network = _build_model(device)

    def infer(number: int) -> Any:
        ids = draw_tokens(number, 3, 200).to(device)
        with torch.no_grad():
            audio = network.encoder(draw_noise(number, 1, 80, 100).to(device))
            for _ in range(6):
                logits = network.decoder(ids, audio)
                ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        return ids.cpu()

    return infer


@add_program("silero_vad/stream")
def _make_vad(device: str) -> Infer:
    """Weights come with the package; the state of the stream stays on the device."""
    from silero_vad import load_silero_vad

    network = load_silero_vad(onnx=False).to(device)

    def infer(number: int) -> Any:
        if number % 16 == 0:
            network.reset_states()
        with torch.no_grad():
            return network(draw_noise(number, 1, 512).to(device), 16000).cpu()

    return infer
