//! The answers that lm-eval reads: log-probabilities of all tokens of a prompt, and of one generated token.

use serde_json::{json, Value};

use crate::client::Site;
use crate::fake::{expected, logprob, BOS};

/// The scores of a prompt as lm-eval asks for them.
fn scores(site: &Site, prompts: &[Vec<i32>]) -> Vec<Value> {
    let body = json!({
        "model": "bytes", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true,
    });
    let answer = site.expect(200, "/v1/completions", &body);
    answer["choices"].as_array().unwrap().iter().map(|choice| choice["logprobs"].clone()).collect()
}

#[test]
fn scores_are_those_of_every_token_and_the_same_floats_everywhere() {
    let site = Site::new();
    let prompts = [vec![BOS, 97, 98, 99, 33], vec![104, 105, 106], vec![0, 0, 255]];
    let found = scores(&site, &prompts);
    assert_eq!(found.len(), 3);
    for (prompt, scores) in prompts.iter().zip(&found) {
        let values = scores["token_logprobs"].as_array().unwrap();
        let tops = scores["top_logprobs"].as_array().unwrap();
        // All tokens of the prompt and the one made.
        assert_eq!((values.len(), tops.len()), (prompt.len() + 1, prompt.len() + 1));
        assert!(values[0].is_null() && tops[0].is_null());
        for i in 1..prompt.len() {
            let (before, token) = (prompt[i - 1], prompt[i]);
            let is = logprob(before, token, expected(before));
            let value = values[i].as_f64().unwrap();
            if is.is_finite() {
                assert_eq!(value as f32, is);
                // The shortest decimal, not that of the float as a double.
                assert_eq!(values[i].to_string(), is.to_string());
            } else {
                assert_eq!(values[i].to_string(), "-9999.0");
            }
            let best =
                tops[i].as_object().unwrap().values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
            assert_eq!(value == best, token == expected(before), "token {i} of {prompt:?}");
        }
        let made = (values.last().unwrap(), tops.last().unwrap().as_object().unwrap());
        assert!(made.1.values().any(|value| value == made.0));
    }
    assert_eq!(found[0]["tokens"], json!(["<s>", "a", "b", "c", "!", "!"]));
    assert_eq!(found[0]["text_offset"], json!([0, 3, 4, 5, 6, 7]));
}

#[test]
fn a_model_that_ends_the_text_still_has_its_token() {
    let site = Site::new();
    // After a special token alone the model ends at once.
    let found = scores(&site, &[vec![BOS]]);
    assert_eq!(found[0]["tokens"], json!(["<s>", "</s>"]));
    assert_eq!(found[0]["token_logprobs"].as_array().unwrap().len(), 2);
}

#[test]
fn the_texts_of_special_tokens_are_found_and_become_tokens() {
    let site = Site::new();
    let info = site.get("/tokenizer_info").json();
    assert_eq!((&info["bos_token"], &info["eos_token"]), (&json!("<s>"), &json!("</s>")));
    let body = json!({ "prompt": "</s>", "add_special_tokens": false });
    assert_eq!(site.expect(200, "/tokenize", &body)["tokens"], json!([257]));
}

#[test]
fn characters_in_several_tokens_keep_their_offsets() {
    let site = Site::new();
    let found = scores(&site, &["aéb".bytes().map(i32::from).collect()]);
    assert_eq!(found[0]["text_offset"], json!([0, 1, 2, 2, 3]));
}
