"""Shape of tiny-qwen, as the config.json of the Qwen3.5 family."""


def make_config(vocab_size: int, end_id: int) -> dict:
    """config.json for a vocabulary padded to `vocab_size`; `end_id` is <|endoftext|>."""
    kinds = {"L": "linear_attention", "F": "full_attention"}
    text = {
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": end_id,
        "dtype": "bfloat16",
        "eos_token_id": end_id,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "layer_types": [kinds[k] for k in "LLFLLFLF"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_value_head_dim": 32,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096,
        "num_attention_heads": 8,
        "num_hidden_layers": 8,
        "num_key_value_heads": 4,
        "output_gate_type": "swish",
        "pad_token_id": None,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": vocab_size,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "language_model_only": False,
        "text_config": text,
        "tie_word_embeddings": True,
        "transformers_version": "5.23.0",
    }
