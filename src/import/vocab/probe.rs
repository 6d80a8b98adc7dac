//! llama.cpp's text that tells pre-tokenizers apart, and the kinds known by what tokenizers make of it.

/// The text (`chktxt` of llama.cpp's `convert_hf_to_gguf_update.py`).
pub(super) const PROBE: &str = concat!(
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u{200d}🌫\u{fe0f} (multi",
    "ple emojis concatenated) ✅ 🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3.",
    "..3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български ''''''``````",
    "`\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'l",
    "l make it, 'D you like some tea? We'Ve a'lL",
);

/// The first 16 digits of the SHA-256 of the ids a tokenizer gives for [`PROBE`], written as Python prints a list, and the
/// value of `tokenizer.ggml.pre` (`get_vocab_base_pre` of `conversion/base.py` in the sources of llama-cpp-python 0.3.36; of
/// two for one hash the last, as there).
#[rustfmt::skip]
pub(super) const KNOWN: &[(&str, &str)] = &[
    ("b6e8e1518dc4305b", "chatglm-bpe"), ("81d72c7348a9f0eb", "chatglm-bpe"), ("a1336059768a55c9", "glm4"),
    ("9ca2dd618e8afaf0", "glm4"), ("cdf5f35325780597", "glm4"), ("1431a23e583c9743", "minerva-7b"),
    ("7e57df22b1fe23a7", "hunyuan"), ("bba3b3366b646dbd", "hunyuan-dense"), ("e6ddf9c6686791c1", "hy_v4"),
    ("a6b57017d60e6edb", "falcon-h1"), ("60476e1243776c4f", "falcon-h1"), ("3eda48b4c4dc7de7", "falcon-h1"),
    ("48f8e02c0359c0bb", "falcon-h1"), ("81212dc7cdb7e0c1", "kimi-k2"), ("d4540891389ea895", "qwen2"),
    ("1444df51289cfa80", "qwen35"), ("66b8d4e19ab16c3b", "grok-2"), ("b3d1dd861f1d4c5c", "jina-v2-de"),
    ("0fe1cf6eda062318", "gpt-2"), ("9e454714343b69b9", "lfm2"), ("846deafc5b0fa786", "gemma4"),
    ("0a766d034107bc73", "spark2_5"), ("0ef9807a4087ebef", "llama-bpe"),
    ("049ecf7629871e30", "deepseek-llm"), ("347715f544604f91", "deepseek-coder"),
    ("8aeee3860c56296a", "falcon"), ("9d032fcbd5501f4a", "falcon3"), ("8e62295832751ca1", "bert-bge-large"),
    ("35d91631860c815f", "starcoder"), ("3ce83efda5659b07", "gpt-2"), ("32d85c31273f8019", "stablelm2"),
    ("6221ad2852e85ce9", "refact"), ("9c2227e4dd922002", "command-r"), ("d772b220ace2baec", "tiny_aya"),
    ("52df12b4c8d4176e", "cohere2moe"), ("e636dc30a262dcc0", "qwen2"), ("b6dc8df998e1cfbd", "olmo"),
    ("a8594e3edff7c29c", "dbrx"), ("c7699093ba4255a9", "jina-v1-en"), ("0876d13b50744004", "jina-v2-en"),
    ("171aeeedd6fb548d", "jina-v2-es"), ("27949a2493fc4a9f", "jina-v2-de"),
    ("a023e9fdc5a11f03", "jina-v5-nano"), ("c136ed14d01c2745", "smaug-bpe"),
    ("c7ea5862a53e4272", "poro-chat"), ("7967bfa498ade6b7", "jina-v2-code"), ("7fc505bd3104ca10", "viking"),
    ("b53802fb28e26d64", "jais"), ("bc5108ee1eb6a3d6", "jais-2"), ("7b3e7548e4308f52", "codeshell"),
    ("63b97e4253352e6f", "tekken"), ("855059429035d75a", "smollm"), ("3c30d3ad1d6b6420", "bloom"),
    ("bc01ce58980e1db4", "gpt3-finnish"), ("4e2b24cc4770243d", "exaone"), ("fcace8b9cac38ce8", "phi-2"),
    ("60824e3c0d9401f8", "chameleon"), ("8b5a93ed70405748", "roberta-bpe"),
    ("ad851be1dba641f2", "gigachat"), ("d4c8f286ea6b520b", "megrez"), ("877081d19cf6996e", "deepseek-v3"),
    ("b3f499bb4255f8ca", "deepseek-r1-qwen"), ("ccc2ef013c104be7", "gpt-4o"),
    ("7dec86086fcc38b6", "superbpe"), ("1994ffd01900cfb3", "trillion"), ("96a5f08be6259352", "bailingmoe"),
    ("d353350c764d8c3b", "llama4"), ("0e9433cbbb161f89", "pixtral"), ("d5f1dd6f980fec56", "seed-coder"),
    ("b0a6b1c0bd5998eb", "a.x-4.0"), ("f6791d196f87ce6b", "midm-2.0"), ("169bf0296a13c4d9", "lfm2"),
    ("2085e1638f6c377a", "exaone4"), ("a1e163ecab2e718a", "mellum"), ("a0b64b4385f12366", "modern-bert"),
    ("49fc0303c9e0d2c2", "afmoe"), ("9b1be57e70d20d95", "bailingmoe2"),
    ("53e325976a6e1423", "granite-docling"), ("f4f37b6c8eb9ea29", "minimax-m2"),
    ("4a2e2abae11ca2b8", "kormo"), ("9d70134b369a70e5", "youtu"), ("16389f0a1f51ee53", "solar-open"),
    ("6c81ce329e080288", "exaone-moe"), ("d30d75d9059f1aa2", "qwen35"), ("b4b8ca1f9769494f", "joyai-llm"),
    ("e4d54df1ebc1f2b9", "kanana2"), ("862f827721df9560", "f2llmv2"), ("62f6fb0a6fd5098c", "sarvam-moe"),
    ("f728162c1315c26e", "talkie"), ("36f3066e97b7f399", "minicpm5"),
    ("f241072145675bf8", "granite-embed-multi-97m"), ("789696f5946cc0fc", "granite-embed-multi-311m"),
    ("9dcf830ee9990cdb", "mellum2"), ("972da7b59cec44d1", "laguna"), ("653660222fb704f6", "ufakzeka"),
];

/// Every kind llama.cpp knows (`src/llama-vocab.cpp` of the pinned crate), for `--pre`.
#[rustfmt::skip]
pub(super) const KINDS: &[&str] = &[
    "a.x-4.0", "afmoe", "bailingmoe", "bailingmoe2", "bloom", "chameleon", "chatglm-bpe", "codeshell",
    "cohere2moe", "command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen", "deepseek-v3",
    "default", "exaone", "exaone-moe", "exaone4", "f2llmv2", "falcon", "falcon-h1", "falcon3", "gemma4",
    "gigachat", "glm4", "glm5", "gpt-2", "gpt-4o", "gpt3-finnish", "granite-docling",
    "granite-embed-multi-311m", "granite-embed-multi-97m", "grok-2", "hunyuan", "hunyuan-dense", "hy_v4",
    "jais", "jais-2", "jina-de", "jina-es", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es",
    "jina-v5-nano", "joyai-llm", "kanana2", "kimi-k2", "kormo", "laguna", "lfm2", "llada-moe", "llama-bpe",
    "llama-v3", "llama3", "llama4", "megrez", "mellum", "mellum2", "midm-2.0", "minerva-7b", "minicpm5",
    "minimax-m2", "mmbert", "modern-bert", "mpt", "olmo", "phi-2", "pixtral", "poro-chat", "qwen2", "qwen35",
    "refact", "roberta-bpe", "sarvam-moe", "seed-coder", "smaug-bpe", "smollm", "solar-open", "spark2_5",
    "stablelm2", "starcoder", "superbpe", "talkie", "tekken", "tiny_aya", "trillion", "ufakzeka", "viking",
    "whitespace", "youtu",
];
