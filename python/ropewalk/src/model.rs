//! A model file on a device.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropewalk::chat::{Conversation, ConversationParams, Template};
use ropewalk::sampler::SamplerParams;
use ropewalk::{Device, GenerateParams, ModelParams, Token};
use serde_json::{Map, Value};

use crate::args::{self, Paths, Texts};
use crate::chat::{self, Chat};
use crate::error::raised;
use crate::plan::Plan;
use crate::session::Session;

/// A model file on a device: `Model(path, device="auto", lora=None, *, chat_template=None)`. `device` is `auto`, `cpu`, or a name
/// such as `cuda:0`, and `lora` are adapters. `chat_template` is the text of a Jinja template that replaces the file's. Sessions and
/// measurements share its weights. Several threads can use one model.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Model {
    native: ropewalk::Model,
    name: String,
    files: Vec<PathBuf>,
    /// The chat template, once it is needed.
    template: OnceLock<Template>,
}

impl Model {
    /// Another handle of the model.
    pub(crate) fn handle(&self) -> ropewalk::Model {
        self.native.clone()
    }

    /// The files of the model and of its adapters that were named.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }

    /// Its name in reports: that of its file, and those of its adapters.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The chat template; ChatML if the file has none.
    pub(crate) fn template(&self, py: Python<'_>) -> PyResult<&Template> {
        match self.template.get() {
            Some(template) => Ok(template),
            None => {
                let made = chat::template(py, &self.native)?;
                Ok(self.template.get_or_init(|| made))
            }
        }
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, device="auto", lora=None, *, chat_template=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        device: &str,
        lora: Option<Paths>,
        chat_template: Option<String>,
    ) -> PyResult<Model> {
        let params = ModelParams::auto().device(Device::from(device)).adapters(args::adapters(lora)?);
        let params = params.chat_template(chat_template);
        let native = py.detach(|| ropewalk::Model::load(&path, &params)).map_err(raised)?;
        let adapters = params.adapters.iter().map(|a| format!(" + {}:{}", file_name(&a.path), a.scale));
        let name = std::iter::once(file_name(&path)).chain(adapters).collect();
        let files = params.adapters.into_iter().map(|a| a.path).chain([path]).collect();
        Ok(Model { native, name, files, template: OnceLock::new() })
    }

    /// The architecture, as `general.architecture` in the file.
    #[getter]
    fn architecture(&self) -> &str {
        &self.native.hparams().arch
    }

    /// The context that the model was trained for, in tokens.
    #[getter]
    fn n_ctx_train(&self) -> usize {
        self.native.hparams().n_ctx_train
    }

    /// Number of layers.
    #[getter]
    fn n_layer(&self) -> usize {
        self.native.hparams().n_layer
    }

    /// Tokens in the vocabulary.
    #[getter]
    fn n_vocab(&self) -> usize {
        self.native.hparams().n_vocab
    }

    /// The token that begins a text, if the vocabulary has one.
    #[getter]
    fn bos(&self) -> Option<Token> {
        self.native.vocab().bos()
    }

    /// The token that ends a text, if the vocabulary has one.
    #[getter]
    fn eos(&self) -> Option<Token> {
        self.native.vocab().eos()
    }

    /// Bytes of its weights and adapters on the device.
    #[getter]
    fn n_bytes(&self) -> usize {
        self.native.n_bytes()
    }

    /// Path of the file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.native.file().path().to_owned()
    }

    /// The device, such as `cpu` or `cuda:0`.
    #[getter]
    fn device(&self) -> &str {
        self.native.device()
    }

    /// The RoPE method of sessions that name none: the one that the file declares, or that an adapter was trained under.
    #[getter]
    fn default_rope(&self) -> PyResult<String> {
        Ok(self.native.default_rope().map_err(raised)?.to_string())
    }

    /// The model in one line.
    #[getter]
    fn description(&self) -> String {
        let hp = self.native.hparams();
        format!(
            "{}: {}, {} layers, trained on {} tokens, on {}",
            self.name,
            hp.arch,
            hp.n_layer,
            hp.n_ctx_train,
            self.native.device()
        )
    }

    fn __repr__(&self) -> String {
        format!("<ropewalk.Model {}>", self.description())
    }

    /// The tokens of a text. With `add_special`, BOS and EOS are added if the model's file asks for them. With
    /// `parse_special`, text such as `<|im_start|>` becomes its token.
    #[pyo3(signature = (text, add_special=true, parse_special=false))]
    fn tokenize(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<Token>> {
        py.detach(|| self.native.vocab().tokenize(text, add_special, parse_special)).map_err(raised)
    }

    /// The text of tokens. With `special`, special tokens are in it.
    #[pyo3(signature = (tokens, special=false))]
    fn detokenize(&self, py: Python<'_>, tokens: Vec<Token>, special: bool) -> PyResult<String> {
        py.detach(|| self.native.vocab().detokenize(&tokens, special)).map_err(raised)
    }

    /// The text of the chat template: that of the file, if it has one, or the one that replaces it.
    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.native.chat_template()
    }

    /// A conversation as text, through the file's chat template (ChatML, if it has none). Messages and `tools` are dicts as
    /// transformers' `apply_chat_template` takes them, and `variables` whatever else the template reads, such as
    /// `enable_thinking`. `add_generation_prompt` opens the assistant's turn. The template runs in a process with limits.
    /// `tokenize` its text with `parse_special=True`, and with `add_special=False` if the template writes BOS.
    #[pyo3(signature = (messages, *, tools=None, add_generation_prompt=true, **variables))]
    fn render(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        add_generation_prompt: bool,
        variables: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<String> {
        let messages: Vec<Value> = args::value("messages", messages)?;
        let mut given: Map<String, Value> = match variables {
            Some(variables) => args::value("variables", variables)?,
            None => Map::new(),
        };
        if let Some(tools) = tools {
            given.insert("tools".into(), args::value("tools", tools)?);
        }
        let template = self.template(py)?;
        py.detach(|| template.render_json(&messages, &given, add_generation_prompt)).map_err(raised)
    }

    /// Opens a session: a context of `n_ctx` tokens (by default, the trained context) under one RoPE method. It has room for
    /// `parallel` texts of that length.
    #[pyo3(signature = (n_ctx=None, rope=None, kv="f16", n_threads=0, math="auto", parallel=1))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn session(
        &self,
        py: Python<'_>,
        n_ctx: Option<usize>,
        rope: Option<&str>,
        kv: &str,
        n_threads: usize,
        math: &str,
        parallel: usize,
    ) -> PyResult<Session> {
        let n_ctx = n_ctx.unwrap_or(self.native.hparams().n_ctx_train);
        let params = args::session(n_ctx, kv, n_threads, math)?.rope(args::spec(rope)?).n_seq_max(parallel);
        let native = py.detach(|| ropewalk::Session::new(&self.native, &params)).map_err(raised)?;
        Ok(Session::new(native))
    }

    /// Opens a conversation in a session, as `session` opens one, through the file's chat template. `system` is a message that
    /// comes first. Answers are generated as by `Session.generate`.
    #[pyo3(signature = (
        n_ctx=None, rope=None, *, system=None, max_tokens=None, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=42,
        stop=None, kv="f16", n_threads=0, math="auto"
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn chat(
        &self,
        py: Python<'_>,
        n_ctx: Option<usize>,
        rope: Option<&str>,
        system: Option<String>,
        max_tokens: Option<usize>,
        temperature: f32,
        top_k: i32,
        top_p: f32,
        min_p: f32,
        seed: u32,
        stop: Option<Texts>,
        kv: &str,
        n_threads: usize,
        math: &str,
    ) -> PyResult<Chat> {
        let n_ctx = n_ctx.unwrap_or(self.native.hparams().n_ctx_train);
        let session = args::session(n_ctx, kv, n_threads, math)?.rope(args::spec(rope)?);
        let sampler =
            SamplerParams::greedy().temp(temperature).top_k(top_k).top_p(top_p).min_p(min_p).seed(seed);
        let generate = GenerateParams::greedy(max_tokens.unwrap_or(usize::MAX))
            .sampler(sampler)
            .stop(stop.map_or_else(Vec::new, Texts::list));
        let params = ConversationParams::new(session, generate);
        let template = chat::template(py, &self.native)?;
        let opened = py.detach(|| Conversation::open(&self.native, template, params));
        let mut conversation = opened.map_err(raised)?;
        conversation.set_system(system);
        Ok(Chat::new(conversation))
    }

    /// The plan of a RoPE method for this model at a context, without opening a session.
    #[pyo3(signature = (rope=None, n_ctx=None))]
    fn plan(&self, rope: Option<&str>, n_ctx: Option<usize>) -> PyResult<Plan> {
        let n_ctx = n_ctx.unwrap_or(self.native.hparams().n_ctx_train);
        let params = ropewalk::SessionParams::new(n_ctx).rope(args::spec(rope)?);
        let plan = ropewalk::Session::plan_of(&self.native, &params).map_err(raised)?;
        Ok(Plan::new(plan, self.native.hparams().clone()))
    }
}
