"""Shape of tiny-kimi, as the config.json of Kimi K3."""

LAYERS = 8
FULL_ATTENTION = [4, 7, 8]
IGNORED = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
           "re:.*vision_tower.*", "re:.*mm_projector.*"]


def quantization() -> dict:
    """Routed experts in MXFP4, everything else as it is."""
    weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4,
               "observer": "minmax", "observer_kwargs": {}, "scale_dtype": "torch.uint8", "strategy": "group",
               "symmetric": True, "type": "float", "zp_dtype": None}
    group = {"format": "mxfp4-pack-quantized", "input_activations": None, "output_activations": None,
             "targets": ["Linear"], "weights": weights}
    return {"config_groups": {"group_0": group}, "format": "mxfp4-pack-quantized", "global_compression_ratio": None,
            "ignore": IGNORED, "kv_cache_scheme": None, "quant_method": "compressed-tensors",
            "quantization_status": "compressed"}


def make_config(vocab_size: int, ids: dict[str, int]) -> dict:
    """config.json; `ids` are the control tokens by name."""
    tokens = {"bos_token_id": ids["[BOS]"], "eos_token_id": ids["<|end_of_msg|>"], "pad_token_id": ids["[PAD]"]}
    linear = {
        "full_attn_layers": FULL_ATTENTION,
        "gate_lower_bound": -5.0,
        "head_dim": 32,
        "kda_layers": [at for at in range(1, LAYERS + 1) if at not in FULL_ATTENTION],
        "num_heads": 8,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    }
    text = tokens | {
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "architectures": ["KimiLinearForCausalLM"],
        "attn_res_block_size": 3,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hidden_act": "situ",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "kv_lora_rank": 64,
        "latent_moe_use_norm": True,
        "linear_attn_config": linear,
        "max_position_embeddings": 4096,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "model_type": "kimi_linear",
        "moe_intermediate_size": 64,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_attention_heads": 8,
        "num_expert_group": 1,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 0,
        "num_shared_experts": 2,
        "q_lora_rank": 128,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "quantization_config": quantization(),
        "rms_norm_eps": 1e-5,
        "routed_expert_hidden_size": 128,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "use_grouped_topk": True,
        "v_head_dim": 32,
        "vocab_size": vocab_size,
    }
    return tokens | {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "dtype": "bfloat16",
        "ignore_index": -100,
        "media_placeholder_token_id": ids["<|media_pad|>"],
        "model_type": "kimi_k3",
        "text_config": text,
        "tie_word_embeddings": False,
    }
