//! Bodies of HTTP requests for completions, chats, and responses.

use ropewalk_serve::check;

use crate::accepted;

const PATHS: [&str; 4] = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/score"];

/// Reads the body as every kind of request.
pub fn run(bytes: &[u8]) -> bool {
    PATHS.map(|path| accepted(check(path, bytes))).contains(&true)
}

/// Requests with every kind of field.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![COMPLETION.into(), TOKENS.into(), CHAT.into(), RESPONSE.into(), SCORE.into(), CALLS.into()]
}

const COMPLETION: &str = r#"{"model": "m@yarn:factor=4", "prompt": ["a", "\u00e9\ud83d\ude00"], "n": 2, "echo": true,
"logprobs": 3, "max_tokens": 4, "stop": ["x", "yz"], "stream": true, "stream_options": {"include_usage": true},
"return_progress": true, "sse_ping_interval": 3, "logit_bias": {"17": -100, "4": 1.5}, "seed": -1, "cache_salt": "s",
"temperature": 0.5, "top_p": 1, "top_k": -1, "min_p": 0.1, "typical_p": 1, "repeat_penalty": 1.1, "repeat_last_n": 64, "return_token_ids": true,
"frequency_penalty": -1, "presence_penalty": 1, "dry_multiplier": 1, "dry_base": 2, "dry_allowed_length": 2,
"dry_penalty_last_n": -1, "min_tokens": 1, "ignore_eos": false, "suffix": null, "best_of": 1, "rope": "auto"}"#;

const TOKENS: &str = r#"{"prompt": [[1, 2], [3]], "max_tokens": 1, "logprobs": 1, "prompt_logprobs": 2}"#;

const CHAT: &str = r#"{"messages": [{"role": "system", "content": "be brief"}, {"role": "assistant", "content": "",
"reasoning_content": "r", "name": "n"}, {"role": "user", "content": [{"type": "text", "text": "t"}]}], "logprobs": true,
"top_logprobs": 5, "max_completion_tokens": 7, "chat_template_kwargs": {"enable_thinking": false}, "tools": [],
"reasoning_format": "none", "reasoning_effort": "low", "response_format": {"type": "text"}, "stop": "s",
"add_generation_prompt": true, "skip_special_tokens": false}"#;

const RESPONSE: &str = r#"{"instructions": "be brief", "input": [{"role": "user", "content": [{"type": "input_text", "text": "t"}]},
{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
{"role": "developer", "content": "c"}], "max_output_tokens": 7, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
"reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "medium"}, "store": false,
"metadata": {"k": "v"}, "parallel_tool_calls": false, "truncation": "disabled", "background": false, "stream": true}"#;

const SCORE: &str =
    r#"{"prompt": [1, 2, 3], "rope": ["plain", "yarn:factor=4"], "cache_prompt": false, "cache_salt": "s"}"#;

const CALLS: &str = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls":
[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool",
"tool_call_id": "1", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f", "description": "d",
"strict": true, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}], "tool_choice":
{"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false, "response_format": {"type":
"json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "object"}}}}"#;
