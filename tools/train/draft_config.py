"""Shapes of the two drafts, as their config.json files; each follows the text config of its target."""

LAYERS = 3
WINDOW = 256
BLOCK = 8


def dflash_config(target: dict, mask: int) -> dict:
    """config.json of a DFlash2 draft; `mask` is a token that texts do not have."""
    own = {
        "block_size": BLOCK,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": mask,
        "selector_rank": 64,
        "selector_top_k": 16,
        "target_layer_ids": [2, 4, 6],
    }
    return {
        "architectures": ["DFlash2DraftModel"],
        "bos_token_id": None,
        "is_causal": False,
        "dflash_config": own,
        "dtype": "bfloat16",
        "eos_token_id": target["eos_token_id"],
        "initializer_range": 0.02,
        "max_window_layers": LAYERS,
        "num_target_layers": target["num_hidden_layers"],
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "transformers_version": "5.23.0",
        "use_cache": False,
        **layers_config(target, 768, 1e-6),
    }


def dspark_config(target: dict, mask: int) -> dict:
    """config.json of a DSpark draft in the form of the speculators library."""
    return {
        "architectures": ["DSparkSpeculator"],
        "aux_hidden_state_layer_ids": [3, 6, 7],
        "block_size": BLOCK,
        "confidence_head_with_markov": False,
        "draft_vocab_size": target["vocab_size"],
        "dtype": "bfloat16",
        "enable_confidence_head": False,
        "markov_head_type": "vanilla",
        "markov_rank": 64,
        "mask_token_id": mask,
        "sample_from_anchor": True,
        "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK}],
            "verifier": {"architectures": ["KimiK3ForConditionalGeneration"], "name_or_path": "tiny-kimi"},
        },
        "speculators_model_type": "dspark",
        "tie_word_embeddings": False,
        "transformer_layer_config": layers_config(target, 512, 1e-5),
    }


def layers_config(target: dict, intermediate: int, eps: float) -> dict:
    """What both say of their layers."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": target["hidden_size"],
        "intermediate_size": intermediate,
        "layer_types": ["sliding_attention"] * LAYERS,
        "max_position_embeddings": target["max_position_embeddings"],
        "model_type": "qwen3",
        "num_attention_heads": 8,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 4,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_theta": 10000, "rope_type": "default"},
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "vocab_size": target["vocab_size"],
    }
