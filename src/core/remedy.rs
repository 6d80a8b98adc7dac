//! The way past an error, as data. Texts of errors name settings; a program adds its option or command.

/// A step that gets past an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Open the adapter's model, with the adapter.
    Adapter,
    /// A larger context.
    Context,
    /// A smaller context, or smaller elements in the KV cache.
    Cache,
    /// The factors of a search.
    Search,
    /// Replacing a file that lacks the mark of an earlier output.
    Force,
    /// Training on chats.
    Chat,
    /// Data of a benchmark: the file of this name within the folder of data.
    Data(&'static str),
    /// A RoPE method for the context that is set.
    Method,
    /// One of several RoPE methods.
    OneMethod,
    /// Another element type.
    Type,
    /// The name of the pre-tokenizer.
    PreTokenizer,
    /// A context within the window of stock llama.cpp.
    Window,
    /// A file for stock llama.cpp.
    LlamaCpp,
}
