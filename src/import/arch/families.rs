//! The families: a row of [`FAMILIES`] each. Where a family's keys or tensors take more than a row can say, it names
//! functions of `keys`, `places` and `standard`.

use crate::config::Class;
use crate::meaning::{Meaning::Irrelevant, Meaning::MustEqual, Meaning::Used, Meanings, TIED};
use crate::tensor::Change;
use crate::vocab::Kinds;

use super::{keys, places, standard, Family, Names};

/// A family without peculiarities, for the others to say how they differ.
const PLAIN: Family = Family {
    classes: &[],
    arch: "",
    class: Class::PLAIN,
    biases: &[],
    names: &[],
    keys: standard::keys,
    place: |_, place| Ok(vec![place.mapped()?]),
    change: |_, _, _| Change::NONE,
    extra: |_, _| Ok(Vec::new()),
    vocab: Kinds::Bpe,
};

/// Models built like Llama.
const LIKE_LLAMA: Family = Family {
    class: Class { rope: &["default", "linear", "yarn", "llama3"], ..Class::PLAIN },
    biases: &[("attention_bias", ".self_attn.q_proj.bias"), ("mlp_bias", ".mlp.up_proj.bias")],
    keys: keys::llama,
    place: places::llama,
    change: places::change_llama,
    extra: standard::llama3,
    vocab: Kinds::Llama,
    ..PLAIN
};

/// Gemma 2 and 3: four norms in a layer, which multiply by one more than their weights.
const LIKE_GEMMA: Family = Family {
    names: &[&[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ]],
    place: places::gemma,
    change: |_, _, name| Change::one_more(name.ends_with("norm")),
    vocab: Kinds::Gemma,
    ..PLAIN
};
const GEMMA: Meanings = &[
    (
        "hidden_activation",
        MustEqual(r#"["gelu_pytorch_tanh", "gelu_new"]"#, "the gate of this architecture has no other"),
    ),
    ("hidden_act", Irrelevant("the class reads hidden_activation")),
    TIED,
];

/// OLMo 2 and 3: norms after attention and feed-forward alone.
const LIKE_OLMO: Family = Family {
    arch: "olmo2",
    names: &[&[
        ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
    ]],
    ..PLAIN
};

/// Qwen 3.5 to 3.8, their text models: gated delta-nets in most layers.
///
/// Several heads of values share one of queries and keys. transformers has those of each side by side; llama.cpp, which
/// repeats queries and keys as a whole, has the first of each, then the second of each. What draws on images, and the
/// layers that draft further tokens (multi-token prediction), are left out.
const LIKE_QWEN35: Family = Family {
    names: &[DELTA_NETS],
    keys: keys::qwen35,
    place: places::qwen35,
    change: places::change_qwen35,
    ..PLAIN
};
const DELTA_NETS: Names = &[
    ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
    ("model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"),
    ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"),
    ("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha"),
    ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"),
    ("model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d"),
    ("model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"),
    ("model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt.bias"),
    ("model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"),
    ("model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"),
];
const QWEN35: Meanings = &[("mtp_num_hidden_layers", Irrelevant("layers that draft tokens are left out"))];

const ALL_EXPERTS: Meanings =
    &[("mlp_only_layers", MustEqual("[[]]", "every layer has experts in this architecture"))];
const ALWAYS_BIASES: Meanings =
    &[("attention_bias", MustEqual("[true]", "attention always has biases in this architecture"))];

const MISTRAL_DEFAULTS: &str = r#"{"hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000,
    "rope_theta": 10000.0, "head_dim": 0}"#;

/// Ministral 3: Llama with YaRN and an attention temperature (`conversion/mistral3.py`).
const MINISTRAL3: Family = Family {
    classes: &["Ministral3ForCausalLM"],
    arch: "mistral3",
    class: Class {
        defaults: MINISTRAL3_DEFAULTS,
        // Ministral 3 and others differ by their type.
        config: &[&[("model_type", Used), ("sliding_window", Used)]],
        ..LIKE_LLAMA.class
    },
    keys: keys::mistral3,
    ..LIKE_LLAMA
};
const MINISTRAL3_DEFAULTS: &str = r#"{"head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 262144, "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "vocab_size": 131072, "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
    "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0,
    "mscale": 1.0, "llama_4_scaling_beta": 0.1}}"#;

/// Every family.
pub(crate) static FAMILIES: &[Family] = &[
    // Cohere's Command R7B: no rotation in layers without a window (`conversion/command_r.py`).
    Family {
        classes: &["Cohere2ForCausalLM"],
        arch: "cohere2",
        class: Class {
            defaults: r#"{"hidden_size": 8192, "intermediate_size": 22528, "layer_norm_eps": 1e-05, "layer_types": null,
                "logit_scale": 0.0625, "max_position_embeddings": 8192, "num_attention_heads": 64,
                "num_hidden_layers": 40, "sliding_window": 4096, "sliding_window_pattern": 4,
                "tie_word_embeddings": true, "vocab_size": 256000, "rope_theta": 10000.0, "head_dim": 0}"#,
            config: &[&[
                ("rotary_pct", MustEqual("[1.0]", "the class rotates every dimension of a head")),
                TIED,
            ]],
            rope: &["default"],
            ..Class::PLAIN
        },
        keys: keys::cohere2,
        place: places::cohere2,
        ..PLAIN
    },
    // Gemma 2 (`conversion/gemma.py`).
    Family {
        classes: &["Gemma2ForCausalLM"],
        arch: "gemma2",
        class: Class {
            defaults: r#"{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
                "hidden_size": 2304, "intermediate_size": 9216, "layer_types": null, "max_position_embeddings": 8192,
                "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
                "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "sliding_window": 4096,
                "tie_word_embeddings": true, "vocab_size": 256000, "rope_theta": 10000.0}"#,
            config: &[GEMMA],
            ..Class::PLAIN
        },
        keys: keys::gemma2,
        ..LIKE_GEMMA
    },
    // Gemma 3, its text model (the same file).
    Family {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        arch: "gemma3",
        class: Class {
            defaults: r#"{"attn_logit_softcapping": null, "final_logit_softcapping": null, "head_dim": 256,
                "hidden_size": 2304, "intermediate_size": 9216, "layer_types": null, "max_position_embeddings": 131072,
                "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
                "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "sliding_window": 4096,
                "sliding_window_pattern": 6, "tie_word_embeddings": true, "vocab_size": 262208,
                "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}"#,
            config: &[
                GEMMA,
                &[("_sliding_window_pattern", Irrelevant("transformers writes it, and never reads it"))],
            ],
            rope_apart: true,
            ..Class::PLAIN
        },
        keys: keys::gemma3,
        place: places::gemma3,
        ..LIKE_GEMMA
    },
    // gpt-oss (`conversion/gpt_oss.py`): experts stacked, rows of gate and up in turn; their weights in MXFP4 as OpenAI
    // publishes them, or as floats with inputs and outputs exchanged, as transformers keeps them.
    Family {
        classes: &["GptOssForCausalLM"],
        arch: "gpt-oss",
        class: Class {
            defaults: r#"{"head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "layer_types": null,
                "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts": null,
                "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
                "rms_norm_eps": 1e-05, "sliding_window": 128, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
                "tie_word_embeddings": false, "vocab_size": 201088, "rope_theta": 150000.0,
                "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": false, "original_max_position_embeddings": 4096}}"#,
            config: &[ALWAYS_BIASES, &[("hidden_act", Irrelevant("the class has a fixed activation"))]],
            packed: &["mxfp4"],
            uncut_ramp: true,
            ..Class::PLAIN
        },
        names: &[&[
            ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
            ("model.layers.{}.mlp.router", "blk.{}.ffn_gate_inp"),
            ("model.layers.{}.self_attn.sinks", "blk.{}.attn_sinks.weight"),
        ]],
        keys: keys::gpt_oss,
        place: places::gpt_oss,
        ..PLAIN
    },
    // GPT-NeoX and Pythia: queries, keys and values of each head in one tensor (`conversion/gptneox.py`).
    Family {
        classes: &["GPTNeoXForCausalLM"],
        arch: "gptneox",
        class: Class {
            defaults: r#"{"hidden_act": "gelu", "hidden_size": 6144, "intermediate_size": 24576,
                "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 64,
                "num_hidden_layers": 44, "partial_rotary_factor": null, "rotary_emb_base": null, "rotary_pct": 0.25,
                "tie_word_embeddings": false, "use_parallel_residual": true, "vocab_size": 50432}"#,
            config: &[
                ALWAYS_BIASES,
                &[
                    ("is_decoder", Irrelevant("the class warns without it, and computes the same")),
                    ("num_key_value_heads", Irrelevant("the class has one for each head")),
                ],
            ],
            ..Class::PLAIN
        },
        names: &[&[
            ("gpt_neox.embed_in", "token_embd"),
            ("gpt_neox.final_layer_norm", "output_norm"),
            ("embed_out", "output"),
            ("gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"),
            ("gpt_neox.layers.{}.attention.query_key_value", "blk.{}.attn_qkv"),
            ("gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"),
            ("gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
            ("gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
            ("gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
        ]],
        keys: keys::gptneox,
        place: places::gptneox,
        change: places::change_gptneox,
        ..PLAIN
    },
    // IBM Granite 3: Llama with factors on embedding, attention, residual and logits (`conversion/granite.py`).
    Family {
        classes: &["GraniteForCausalLM"],
        arch: "granite",
        class: Class {
            defaults: r#"{"attention_bias": false, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
                "hidden_size": 4096, "intermediate_size": 11008, "logits_scaling": 1.0, "max_position_embeddings": 2048,
                "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 32, "residual_multiplier": 1.0,
                "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "vocab_size": 32000, "rope_theta": 10000.0}"#,
            ..LIKE_LLAMA.class
        },
        keys: keys::granite,
        ..LIKE_LLAMA
    },
    // Llama 1 to 3 (`conversion/llama.py`).
    Family {
        classes: &["LlamaForCausalLM", "LLaMAForCausalLM"],
        arch: "llama",
        class: Class {
            defaults: r#"{"attention_bias": false, "hidden_size": 4096, "intermediate_size": 11008,
                "max_position_embeddings": 2048, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 32,
                "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "vocab_size": 32000, "rope_theta": 10000.0,
                "head_dim": 0}"#,
            config: &[&[("pretraining_tp", Irrelevant("the same products in pieces"))]],
            ..LIKE_LLAMA.class
        },
        ..LIKE_LLAMA
    },
    // Mistral 7B, whose windows llama.cpp leaves out.
    Family {
        classes: &["MistralForCausalLM"],
        arch: "llama",
        class: Class { defaults: MISTRAL_DEFAULTS, ..LIKE_LLAMA.class },
        keys: keys::windowed_llama,
        ..LIKE_LLAMA
    },
    MINISTRAL3,
    // With images, which are left out; the text model is of either kind.
    Family {
        classes: &["Mistral3ForConditionalGeneration"],
        class: Class {
            defaults: MISTRAL_DEFAULTS,
            defaults_of: &[("ministral3", MINISTRAL3_DEFAULTS)],
            ..MINISTRAL3.class
        },
        ..MINISTRAL3
    },
    // OLMo 2 (`conversion/olmo.py`).
    Family {
        classes: &["Olmo2ForCausalLM"],
        class: Class {
            defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
                "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-05,
                "tie_word_embeddings": false, "vocab_size": 50304, "rope_theta": 10000.0}"#,
            ..Class::PLAIN
        },
        ..LIKE_OLMO
    },
    Family {
        classes: &["Olmo3ForCausalLM"],
        class: Class {
            defaults: r#"{"hidden_size": 4096, "intermediate_size": 11008, "layer_types": null,
                "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
                "rms_norm_eps": 1e-05, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 50304,
                "rope_theta": 500000.0}"#,
            rope_apart: true,
            ..Class::PLAIN
        },
        keys: keys::olmo3,
        ..LIKE_OLMO
    },
    // Phi 1.5 and 2 (`conversion/phi.py`).
    Family {
        classes: &["PhiForCausalLM"],
        arch: "phi2",
        class: Class {
            defaults: r#"{"hidden_size": 2048, "intermediate_size": 8192, "layer_norm_eps": 1e-05,
                "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 24,
                "tie_word_embeddings": false, "vocab_size": 51200, "rope_theta": 10000.0,
                "hidden_act": "gelu_new", "partial_rotary_factor": 0.5}"#,
            config: &[&[(
                "qk_layernorm",
                MustEqual("[false]", "queries and keys have no norms in this architecture"),
            )]],
            ..Class::PLAIN
        },
        names: &[&[
            ("model.final_layernorm", "output_norm"),
            ("model.layers.{}.self_attn.dense", "blk.{}.attn_output"),
            ("model.layers.{}.mlp.fc1", "blk.{}.ffn_up"),
            ("model.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
        ]],
        keys: keys::phi2,
        ..PLAIN
    },
    // Phi 3, 3.5 and 4: fused tensors, and LongRoPE's two tables of factors (`conversion/phi.py`).
    Family {
        classes: &["Phi3ForCausalLM"],
        arch: "phi3",
        class: Class {
            defaults: r#"{"hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
                "num_attention_heads": 32, "num_hidden_layers": 32, "original_max_position_embeddings": 4096,
                "rms_norm_eps": 1e-05, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32064,
                "rope_theta": 10000.0, "partial_rotary_factor": 1.0}"#,
            rope: &["default", "longrope", "su", "yarn"],
            ..Class::PLAIN
        },
        names: &[&[
            ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
            ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
        ]],
        keys: keys::phi3,
        extra: keys::longrope,
        vocab: Kinds::Phi3,
        ..PLAIN
    },
    // Qwen 2 and 2.5; all of Qwen in `conversion/qwen.py`.
    Family {
        classes: &["Qwen2ForCausalLM"],
        arch: "qwen2",
        class: Class {
            defaults: r#"{"hidden_size": 4096, "intermediate_size": 22016, "layer_types": null,
                "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 32,
                "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "sliding_window": 4096,
                "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936,
                "rope_theta": 10000.0}"#,
            config: &[&[(
                "attention_bias",
                Irrelevant("queries, keys and values have biases whatever it says"),
            )]],
            ..Class::PLAIN
        },
        keys: keys::qwen2,
        ..PLAIN
    },
    Family {
        classes: &["Qwen3ForCausalLM"],
        arch: "qwen3",
        class: Class {
            defaults: r#"{"head_dim": 128, "hidden_size": 4096, "intermediate_size": 22016, "layer_types": null,
                "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 32,
                "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "sliding_window": 4096,
                "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936,
                "rope_theta": 10000.0}"#,
            ..Class::PLAIN
        },
        keys: keys::qwen2,
        ..PLAIN
    },
    Family {
        classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
        arch: "qwen35",
        class: Class {
            defaults: r#"{"attn_output_gate": null, "full_attention_interval": 4, "head_dim": 256, "hidden_size": 4096,
                "intermediate_size": 12288, "layer_types": null, "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                "linear_value_head_dim": 128, "max_position_embeddings": 32768, "num_attention_heads": 16,
                "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
                "tie_word_embeddings": false, "vocab_size": 248320, "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25}"#,
            config: &[QWEN35],
            ..Class::PLAIN
        },
        ..LIKE_QWEN35
    },
    // Qwen 3.5 with the experts of Qwen 3, and one that is shared.
    Family {
        classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
        arch: "qwen35moe",
        class: Class {
            defaults: r#"{"attn_output_gate": null, "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
                "layer_types": null, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
                "max_position_embeddings": 32768, "moe_intermediate_size": 512, "num_attention_heads": 16,
                "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
                "rms_norm_eps": 1e-06, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
                "vocab_size": 248320, "rope_theta": 10000.0, "partial_rotary_factor": 0.25}"#,
            config: &[QWEN35, ALL_EXPERTS],
            ..Class::PLAIN
        },
        names: &[
            DELTA_NETS,
            &[
                ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
                ("model.layers.{}.mlp.shared_expert_gate", "blk.{}.ffn_gate_inp_shexp"),
                ("model.layers.{}.mlp.shared_expert.gate_proj", "blk.{}.ffn_gate_shexp"),
                ("model.layers.{}.mlp.shared_expert.up_proj", "blk.{}.ffn_up_shexp"),
                ("model.layers.{}.mlp.shared_expert.down_proj", "blk.{}.ffn_down_shexp"),
            ],
        ],
        keys: keys::qwen35moe,
        place: places::qwen35moe,
        ..LIKE_QWEN35
    },
    // Qwen 3 with experts, in a tensor each or stacked.
    Family {
        classes: &["Qwen3MoeForCausalLM"],
        arch: "qwen3moe",
        class: Class {
            defaults: r#"{"hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 32768,
                "moe_intermediate_size": 768, "norm_topk_prob": false, "num_attention_heads": 32,
                "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 4,
                "num_local_experts": null, "rms_norm_eps": 1e-06, "sliding_window": 4096,
                "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936,
                "rope_theta": 10000.0}"#,
            config: &[
                ALL_EXPERTS,
                &[("decoder_sparse_step", MustEqual("[1]", "every layer has experts in this architecture"))],
            ],
            ..Class::PLAIN
        },
        names: &[&[("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp")]],
        keys: keys::qwen3moe,
        place: places::qwen3moe,
        ..PLAIN
    },
    // SmolLM3: Llama without rotation in every fourth layer, which llama.cpp knows by itself (`conversion/llama.py`).
    Family {
        classes: &["SmolLM3ForCausalLM"],
        arch: "smollm3",
        class: Class {
            defaults: r#"{"attention_bias": false, "hidden_size": 2048, "intermediate_size": 11008, "layer_types": null,
                "max_position_embeddings": 32768, "mlp_bias": false, "no_rope_layer_interval": 4,
                "no_rope_layers": null, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
                "rms_norm_eps": 1e-06, "sliding_window": null, "tie_word_embeddings": true,
                "use_sliding_window": false, "vocab_size": 128256, "rope_theta": 2000000.0}"#,
            ..LIKE_LLAMA.class
        },
        keys: keys::smollm3,
        ..LIKE_LLAMA
    },
];
