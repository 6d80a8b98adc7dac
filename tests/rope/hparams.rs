//! Hparams from files: what is read, and every way to be refused.

use ggml::DType;
use gguf::{Array, File, Value, Writer};
use ropewalk::hparams::{keys, DeltaNetHparams, ExpertHparams, Gelu, Hparams};
use ropewalk::rope::Spec;

/// A file of metadata, one embedding table and whatever else a case adds.
struct Case {
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, DType, Vec<u64>, Vec<u8>)>,
}

fn text(s: &str) -> Value {
    Value::String(s.as_bytes().to_vec())
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

impl Case {
    fn new() -> Case {
        let mut case = Case { keys: Vec::new(), tensors: Vec::new() };
        case.keys.push(("general.architecture".into(), text("llama")));
        for (key, n) in [
            ("block_count", 3),
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("context_length", 512),
        ] {
            case.keys.push((format!("llama.{key}"), Value::U32(n)));
        }
        case.keys.push(("llama.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-5)));
        case.tensors.push(("token_embd.weight".into(), DType::F32, vec![32, 10], vec![0; 32 * 10 * 4]));
        case
    }
    /// Sets a key; one that starts with a dot is the architecture's.
    fn set(mut self, key: &str, value: Value) -> Case {
        let key = if key.starts_with('.') { format!("llama{key}") } else { key.to_owned() };
        self.keys.retain(|(k, _)| *k != key);
        self.keys.push((key, value));
        self
    }
    fn without(mut self, key: &str) -> Case {
        self.keys.retain(|(k, _)| *k != format!("llama{key}"));
        self
    }
    fn tensor(mut self, name: &str, dtype: DType, shape: &[u64], data: Vec<u8>) -> Case {
        self.tensors.retain(|t| t.0 != name);
        self.tensors.push((name.into(), dtype, shape.into(), data));
        self
    }
    fn with_file<T>(self, f: impl FnOnce(&File) -> T) -> T {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("case.gguf");
        let mut writer = Writer::new();
        for (key, value) in self.keys {
            writer.set(&key, value);
        }
        for (name, dtype, shape, data) in self.tensors {
            writer.tensor_bytes(&name, dtype, &shape, data).unwrap();
        }
        writer.write(&path).unwrap();
        f(&File::open(&path).unwrap())
    }
    fn read(self) -> Hparams {
        self.with_file(Hparams::from_gguf).unwrap()
    }
    /// The file opens, and what it declares is refused in one line that holds every one of `parts`.
    fn undeclared(self, parts: &[&str]) {
        let error = Spec::declared(&self.read()).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part) && !error.contains('\n'), "{error:?} lacks {part:?}");
        }
    }
    /// The refusal is one line that names the file and holds every one of `parts`.
    fn refused(self, parts: &[&str]) {
        let error = self.with_file(Hparams::from_gguf).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error:?}");
        for part in ["case.gguf"].iter().chain(parts) {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    }
}

#[test]
fn reads_numbers_and_defaults() {
    let hp = Case::new().read();
    assert_eq!((hp.n_layer, hp.n_embd, hp.layers[0].n_ff, hp.n_vocab), (3, 32, 64, 10));
    let layer = hp.attention_of(0).unwrap();
    assert_eq!((layer.n_head, layer.n_head_kv, layer.n_embd_head, layer.n_rot()), (4, 2, 8, 8));
    let freq_base = layer.rotation.unwrap().freq_base;
    assert_eq!((hp.n_ctx_train, freq_base, hp.norm_eps), (512, 10_000.0, 1e-5));
    assert_eq!(hp.rope_scaling, Default::default());
    assert_eq!(Case::new().without(".attention.head_count_kv").read().attention_of(0).unwrap().n_head_kv, 4);
}

#[test]
fn reads_key_length_and_partial_rotation() {
    let hp = Case::new()
        .set(".attention.key_length", Value::U32(16))
        .set(".attention.value_length", Value::U64(16))
        .set(".rope.dimension_count", Value::I32(6))
        .read();
    assert_eq!((hp.attention_of(0).unwrap().n_embd_head, hp.attention_of(0).unwrap().n_rot()), (16, 6));
}

#[test]
fn counts_may_be_given_per_layer() {
    let array = |v: &[i32]| Value::Array(Array::I32(v.to_vec()));
    let hp = Case::new().set(".attention.head_count", array(&[4, 4, 4])).read();
    assert_eq!((hp.attention_of(2).unwrap().n_head, hp.attention.len()), (4, 1));
    Case::new().set(".attention.head_count", array(&[4, 4])).refused(&["expected 3 entries", "found 2"]);
    Case::new().set(".feed_forward_length", array(&[])).refused(&["expected 3 entries", "found 0"]);
    Case::new().set(".attention.head_count_kv", array(&[-1, -1, -1])).refused(&["head_count_kv", "integer"]);
    let floats = Value::Array(Array::F32(vec![4.0; 3]));
    Case::new().set(".attention.head_count", floats).refused(&["head_count", "integer"]);
    Case::new()
        .set(".attention.head_count_kv", array(&[2, 2, 3]))
        .refused(&["layer 2", "divisor", "found 3"]);
    Case::new().set(".attention.head_count", array(&[4, 0, 4])).refused(&["head_count", "found 0"]);
}

#[test]
fn layers_that_differ_have_records_of_their_own() {
    let array = |v: &[i32]| Value::Array(Array::I32(v.to_vec()));
    let hp = Case::new()
        .set(".attention.head_count", array(&[4, 2, 4]))
        .set(".attention.head_count_kv", array(&[2, 1, 2]))
        .set(".feed_forward_length", array(&[64, 64, 96]))
        .read();
    let heads = |il| (hp.attention_of(il).unwrap().n_head, hp.attention_of(il).unwrap().n_head_kv);
    assert_eq!([heads(0), heads(1), heads(2)], [(4, 2), (2, 1), (4, 2)]);
    assert_eq!((hp.attention.len(), hp.layers[2].kind, hp.layers[2].n_ff), (2, Some(0), 96));
    assert_eq!(hp.layers_of(0).collect::<Vec<_>>(), [0, 2]);
    // The width of a head is that of the first layer, as in llama.cpp.
    assert_eq!((hp.attention_of(1).unwrap().n_embd_head, hp.attention_of(1).unwrap().n_embd_kv()), (8, 8));
    let wide = Case::new().set(".feed_forward_length", array(&[64, 64, 96])).read();
    assert_eq!((wide.attention.len(), wide.layers[1].n_ff, wide.layers[2].n_ff), (1, 64, 96));
}

/// The same under another architecture's name.
fn mixture(arch: &str) -> Case {
    let Case { mut keys, tensors } = Case::new();
    keys.retain(|(key, _)| !key.ends_with("feed_forward_length"));
    for (key, _) in &mut keys {
        *key = key.replace("llama.", &format!("{arch}."));
    }
    keys.push(("general.architecture".into(), text(arch)));
    keys.remove(0);
    let numbers = [("expert_count", 8), ("expert_used_count", 2), ("expert_feed_forward_length", 48)];
    keys.extend(numbers.map(|(key, n)| (format!("{arch}.{key}"), Value::U32(n))));
    keys.push((format!("{arch}.attention.sliding_window"), Value::U32(128)));
    Case { keys, tensors }
}

#[test]
fn mixtures_of_experts_have_numbers_of_their_own() {
    let hp = mixture("qwen3moe").read();
    assert_eq!(
        hp.experts,
        Some(ExpertHparams { n_expert: 8, n_used: 2, n_ff_shared: None, normalised: true })
    );
    assert!(hp.layers.iter().all(|layer| layer.n_ff == 48) && hp.attention.len() == 1);
    assert_eq!(Case::new().set(".expert_count", Value::U32(8)).read().experts, None);

    // Without a width of their own, that of the feed-forward divided by those used.
    let mut case = mixture("qwen3moe").set("qwen3moe.feed_forward_length", Value::U32(64));
    case.keys.retain(|(key, _)| !key.contains("expert_feed"));
    assert_eq!(case.read().layers[1].n_ff, 32);

    let hp = mixture("gpt-oss").read();
    let windows: Vec<Option<usize>> = (0..3).map(|il| hp.attention_of(il).unwrap().window).collect();
    assert_eq!(windows, [Some(128), None, Some(128)]);

    for (key, n, expected) in [
        ("expert_count", 1, "2 to 512"),
        ("expert_count", 513, "2 to 512"),
        ("expert_used_count", 0, "1 to 8"),
        ("expert_used_count", 9, "1 to 8"),
        ("expert_group_count", 2, "0 to 1"),
        ("expert_feed_forward_length", 0, "1 to"),
    ] {
        let key = format!("qwen3moe.{key}");
        mixture("qwen3moe").set(&key, Value::U32(n)).refused(&[&key, expected, &n.to_string()]);
    }
    for (arch, key) in
        [("qwen3moe", "expert_count"), ("qwen3moe", "expert_used_count"), ("gpt-oss", "sliding_window")]
    {
        let mut case = mixture(arch);
        case.keys.retain(|(k, _)| !k.ends_with(key));
        case.refused(&[arch, key, "found no such key"]);
    }
}

/// Six layers, of which the last two draft.
fn delta_nets() -> Case {
    let Case { mut keys, tensors } = Case::new().set(".block_count", Value::U32(6));
    for (key, _) in &mut keys {
        *key = key.replace("llama.", "qwen35.");
    }
    keys[0].1 = text("qwen35");
    let numbers = [
        ("nextn_predict_layers", 2),
        ("full_attention_interval", 3),
        ("rope.dimension_count", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.group_count", 2),
        ("ssm.state_size", 8),
        ("ssm.time_step_rank", 6),
        ("ssm.inner_size", 48),
    ];
    keys.extend(numbers.map(|(key, n)| (format!("qwen35.{key}"), Value::U32(n))));
    let case = Case { keys, tensors };
    case.set("qwen35.rope.dimension_sections", Value::Array(Array::I32(vec![1, 1, 0, 0])))
}

#[test]
fn gated_delta_nets_have_no_attention() {
    let hp = delta_nets().read();
    let net = DeltaNetHparams { n_head_k: 2, n_head_v: 6, n_embd_head: 8, n_conv: 4 };
    assert_eq!((hp.n_layer, hp.n_draft, hp.delta_net), (4, 2, Some(net)));
    assert_eq!((net.n_embd_v(), net.n_embd_conv(), net.n_state(), net.n_conv_state()), (48, 80, 384, 240));
    assert_eq!(hp.recurrent_layers().collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!(hp.layers_of(0).collect::<Vec<_>>(), [2]);
    assert!(hp.attention_of(1).is_none() && hp.attention_of(9).is_none());
    assert_eq!(hp.attention_of(2).map(|layer| layer.n_rot()), Some(4));
    let listed = vec![false, true, false, true, false, false];
    let case = delta_nets().set("qwen35.attention.recurrent_layers", Value::Array(Array::Bool(listed)));
    assert_eq!(case.read().recurrent_layers().collect::<Vec<_>>(), [1, 3]);

    // Heads of layers that do not attend make no kind.
    let heads = Value::Array(Array::U32(vec![4, 4, 2, 4, 2, 2]));
    let hp = delta_nets()
        .set("qwen35.attention.head_count", heads)
        .set("qwen35.attention.key_length", Value::U32(8));
    let hp = hp.set("qwen35.attention.value_length", Value::U32(8)).read();
    assert_eq!((hp.attention.len(), hp.attention_of(2).unwrap().n_head), (1, 2));

    for (key, n, expected) in [
        ("nextn_predict_layers", 6, "block_count: expected 7 to 512, found 6"),
        ("full_attention_interval", 0, "expected 1 to"),
        ("full_attention_interval", 5, "expected at least one layer with attention, found none of 4"),
        ("ssm.conv_kernel", 1, "expected 2 to 256, found 1"),
        ("ssm.group_count", 4, "expected a divisor of ssm.time_step_rank = 6, found 4"),
        ("ssm.group_count", 7, "expected 1 to 6, found 7"),
        ("ssm.state_size", 0, "expected 1 to 4096, found 0"),
        ("ssm.inner_size", 40, "expected 48, 6 heads of 8, found 40"),
    ] {
        delta_nets().set(&format!("qwen35.{key}"), Value::U32(n)).refused(&["qwen35.", expected]);
    }
    // The second pair would turn by the fourth position, which is 0 in text.
    for sections in [vec![1, 0, 0, 1], vec![0; 4], vec![1, 1], vec![9, 0, 0, 0], vec![-1, 1, 1, 1]] {
        let case = delta_nets().set("qwen35.rope.dimension_sections", Value::Array(Array::I32(sections)));
        case.refused(&["qwen35.rope.dimension_sections", "expected"]);
    }
    let mut case = delta_nets();
    case.keys.retain(|(key, _)| !key.ends_with("dimension_sections"));
    case.refused(&["qwen35.rope.dimension_sections", "found no such key"]);
}

#[test]
fn mixtures_of_gated_delta_nets_have_an_expert_that_is_shared() {
    let case = || {
        let Case { mut keys, tensors } = delta_nets();
        keys.iter_mut().for_each(|(key, _)| *key = key.replace("qwen35.", "qwen35moe."));
        keys[0].1 = text("qwen35moe");
        let numbers = [("expert_count", 8), ("expert_used_count", 2), ("expert_feed_forward_length", 24)];
        keys.extend(numbers.map(|(key, n)| (format!("qwen35moe.{key}"), Value::U32(n))));
        Case { keys, tensors }
    };
    let hp = case().read();
    // As wide as the feed-forward of the file, if it has no separate width.
    let experts = ExpertHparams { n_expert: 8, n_used: 2, n_ff_shared: Some(64), normalised: true };
    assert_eq!((hp.experts, hp.layers[0].n_ff), (Some(experts), 24));
    assert!(hp.delta_net.is_some() && hp.recurrent_layers().count() == 3);
    let key = "qwen35moe.expert_shared_feed_forward_length";
    let own = case().set(key, Value::U32(40)).read();
    assert_eq!(own.experts, Some(ExpertHparams { n_ff_shared: Some(40), ..experts }));
    case().set(key, Value::U32(1 << 30)).refused(&[key, "found 1073741824"]);
}

#[test]
fn gelu_is_of_the_form_that_a_key_of_ours_names() {
    assert_eq!(Case::new().read().gelu, Gelu::Tanh);
    for (form, wanted) in [("tanh", Gelu::Tanh), ("erf", Gelu::Erf)] {
        assert_eq!(Case::new().set(keys::GELU, text(form)).read().gelu, wanted);
    }
    Case::new().set(keys::GELU, text("quick")).refused(&[keys::GELU, "expected tanh or erf", "quick"]);
    Case::new().set(keys::GELU, Value::U32(1)).refused(&[keys::GELU]);
}

#[test]
fn refuses_missing_keys_and_wrong_types() {
    for key in
        ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"]
    {
        Case::new().without(&format!(".{key}")).refused(&[&format!("llama.{key}"), "expected"]);
        Case::new().set(&format!(".{key}"), text("x")).refused(&[&format!("llama.{key}"), "string"]);
        Case::new().set(&format!(".{key}"), Value::U32(0)).refused(&[&format!("llama.{key}"), "found 0"]);
    }
    Case::new().without(".attention.layer_norm_rms_epsilon").refused(&["layer_norm_rms_epsilon"]);
    Case::new().set("general.architecture", text("")).refused(&["general.architecture"]);
    Case::new().set("general.architecture", text("a\nb")).refused(&["general.architecture"]);
}

#[test]
fn refuses_numbers_out_of_range() {
    let u = Value::U64;
    Case::new().set(".block_count", u(u64::MAX)).refused(&["block_count", "expected 1 to 512"]);
    Case::new().set(".embedding_length", u(1 << 40)).refused(&["embedding_length"]);
    Case::new().set(".context_length", u(1 << 31)).refused(&["context_length", "2147483648"]);
    Case::new().set(".attention.head_count", u(5)).refused(&["head_count_kv", "divisor", "5"]);
    let three = Case::new().set(".attention.head_count_kv", u(3));
    three.refused(&["head_count_kv", "divisor", "found 3"]);
    Case::new().set(".attention.head_count_kv", u(8)).refused(&["head_count_kv", "expected 1 to 4"]);
    Case::new().set(".attention.head_count", u(64)).refused(&["head_count", "embedding_length = 32"]);
    Case::new().set(".rope.dimension_count", u(7)).refused(&["dimension_count", "even", "7"]);
    Case::new().set(".rope.dimension_count", u(10)).refused(&["dimension_count", "expected 2 to 8"]);
    Case::new().set(".attention.key_length", u(16)).refused(&["value_length", "16", "8"]);
    let (key, value) = (".attention.key_length", ".attention.value_length");
    let wide = Case::new().set(key, u(1 << 24)).set(value, u(1 << 24));
    wide.refused(&["head_count", "4 heads of width 16777216"]);
}

#[test]
fn refuses_what_is_not_a_positive_number() {
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base"] {
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            Case::new().set(&format!(".{key}"), Value::F32(bad)).refused(&[key, "above 0"]);
        }
        Case::new().set(&format!(".{key}"), Value::F64(1e-300)).refused(&[key, "above 0"]);
        Case::new().set(&format!(".{key}"), Value::Bool(true)).refused(&[key]);
    }
    Case::new().set(".rope.scaling.factor", Value::F32(-2.0)).undeclared(&["scaling.factor", "-2"]);
    let nan = Case::new().set(".rope.scaling.yarn_ext_factor", Value::F32(f32::NAN));
    nan.undeclared(&["yarn_ext_factor", "NaN"]);
}

#[test]
fn the_embedding_table_must_agree() {
    let table = |shape: &[u64]| {
        let n = shape.iter().product::<u64>() as usize;
        Case::new().tensor("token_embd.weight", DType::F32, shape, vec![0; 4 * n])
    };
    table(&[16, 10]).refused(&["token_embd.weight", "[32, number of tokens]", "[16, 10]"]);
    table(&[32]).refused(&["token_embd.weight", "[32]"]);
    table(&[32, 5, 2]).refused(&["token_embd.weight", "[32, 5, 2]"]);
    let tokens = |n| Value::Array(Array::String(vec![b"t".to_vec(); n]));
    assert_eq!(Case::new().set("tokenizer.ggml.tokens", tokens(10)).read().n_vocab, 10);
    Case::new().set("tokenizer.ggml.tokens", tokens(9)).refused(&["tokenizer.ggml.tokens", "10", "found 9"]);
    Case::new().set("tokenizer.ggml.tokens", Value::U32(1)).refused(&["tokenizer.ggml.tokens"]);
    let mut none = Case::new();
    none.tensors.clear();
    none.refused(&["token_embd.weight"]);
}

#[test]
fn reads_declared_scaling() {
    let hp = Case::new()
        .set(".rope.freq_base", Value::F32(5e5))
        .set(".rope.scaling.type", text("yarn"))
        .set(".rope.scaling.factor", Value::F32(4.0))
        .set(".rope.scaling.original_context_length", Value::U32(128))
        .set(".rope.scaling.yarn_ext_factor", Value::F32(-1.0))
        .set(".rope.scaling.yarn_beta_fast", Value::F32(24.0))
        .read();
    assert_eq!(hp.attention_of(0).unwrap().rotation.unwrap().freq_base, 5e5);
    let s = hp.rope_scaling;
    assert_eq!((s.kind.as_deref(), s.factor, s.n_ctx_orig), (Some("yarn"), Some(4.0), Some(128)));
    assert_eq!((s.yarn_ext_factor, s.yarn_beta_fast), (None, Some(24.0)));

    let s = Case::new().set(".rope.scale_linear", Value::F32(2.0)).read().rope_scaling;
    assert_eq!((s.kind.as_deref(), s.factor), (Some("linear"), Some(2.0)));
    let s = Case::new().set(".rope.scale_linear", Value::F32(0.0)).read().rope_scaling;
    assert_eq!((s.kind, s.factor), (None, None));
    let dynamic = Case::new().set(".rope.scaling.type", text("dynamic"));
    dynamic.undeclared(&["scaling.type", "yarn", "dynamic", "dynamic-ntk:factor=1"]);
}

#[test]
fn reads_factor_tensors() {
    let name = "rope_freqs.weight";
    let with = |v: &[f32]| Case::new().tensor(name, DType::F32, &[v.len() as u64], f32s(v));
    let s = with(&[1.0, 2.0, 4.0, 8.0]).read().rope_scaling;
    assert_eq!(s.freq_factors.as_deref(), Some(&[1.0, 2.0, 4.0, 8.0][..]));
    with(&[1.0, 2.0]).refused(&[name, "f32 [4]", "[2]"]);
    with(&[1.0, 2.0, 0.0, 8.0]).refused(&[name, "above 0", "at 2"]);
    with(&[1.0, f32::NAN, 1.0, 8.0]).refused(&[name, "NaN", "at 1"]);
    with(&[1.0, 1.0, 1.0, f32::INFINITY]).refused(&[name, "inf"]);
    let halves = Case::new().tensor(name, DType::F16, &[4], vec![0; 8]);
    halves.refused(&[name, "f16"]);
    let long = Case::new().tensor("rope_factors_long.weight", DType::F32, &[2, 2], f32s(&[1.0; 4]));
    long.undeclared(&["rope_factors_long.weight", "[2, 2]"]);
}

/// A file as `convert` writes it: the standard keys say the method, the kept ones the model.
fn converted() -> Case {
    Case::new()
        .set(".context_length", Value::U32(2048))
        .set(".rope.freq_base", Value::F32(40_000.0))
        .set(".rope.scaling.type", text("linear"))
        .set(".rope.scaling.factor", Value::F32(4.0))
        .set(keys::ORIG_CONTEXT_LENGTH, Value::U32(512))
        .set("ropewalk.orig.rope.freq_base", Value::F32(20_000.0))
}

#[test]
fn a_spec_of_ours_counts_from_the_model_as_trained() {
    let hp = converted().set(keys::SPEC, text("ntk:factor=4")).read();
    assert_eq!((hp.n_ctx_train, hp.attention_of(0).unwrap().rotation.unwrap().freq_base), (2048, 20_000.0));
    let s = hp.rope_scaling;
    assert_eq!((s.spec.as_deref(), s.n_ctx_orig, s.kind), (Some("ntk:factor=4"), Some(512), None));
    Case::new().set(keys::SPEC, text("")).refused(&[keys::SPEC]);
    Case::new().set(keys::SPEC, Value::U8(1)).refused(&[keys::SPEC]);

    // Without one, the standard keys are the method.
    let hp = converted().read();
    assert_eq!((hp.n_ctx_train, hp.attention_of(0).unwrap().rotation.unwrap().freq_base), (2048, 40_000.0));
    assert_eq!(hp.rope_scaling.kind.as_deref(), Some("linear"));
}

#[test]
fn as_trained_undoes_both_kinds_of_conversion() {
    let baked = f32s(&[1.0, 2.0, 3.0, 4.0]);
    for original in [vec![], vec![2.0; 4]] {
        let case = converted().tensor("rope_freqs.weight", DType::F32, &[4], baked.clone());
        let case = case.set(keys::ORIG_ROPE_FREQS, Value::Array(Array::F32(original.clone())));
        let hp = case.with_file(Hparams::as_trained).unwrap();
        assert_eq!(
            (hp.n_ctx_train, hp.attention_of(0).unwrap().rotation.unwrap().freq_base),
            (512, 20_000.0)
        );
        let expected = (!original.is_empty()).then_some(original);
        assert_eq!((hp.rope_scaling.freq_factors, hp.rope_scaling.kind), (expected, None));
    }
    let hp = converted().set(keys::SPEC, text("plain")).with_file(Hparams::as_trained).unwrap();
    assert_eq!((hp.n_ctx_train, hp.rope_scaling.spec), (512, None));
    let plain = Case::new().with_file(|f| (Hparams::as_trained(f).unwrap(), Hparams::from_gguf(f).unwrap()));
    assert_eq!(plain.0, plain.1);
}
