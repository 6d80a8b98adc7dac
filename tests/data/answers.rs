//! Answers of each family taken apart, whole and piece by piece.

use ropewalk::chat::answer::{Form, Part, Parts};

/// Content and thinking of an answer that comes whole, and byte by byte.
fn split(form: Form, prompt: &str, answer: &str) -> (String, Option<String>) {
    let mut whole = Parts::new(form, prompt);
    whole.push(answer);
    let mut pieces = Parts::new(form, prompt);
    let mut shown = String::new();
    for c in answer.chars() {
        shown.extend(pieces.push(c.encode_utf8(&mut [0; 4])).into_iter().map(|(_, text)| text));
    }
    shown.extend(pieces.rest().into_iter().map(|(_, text)| text));
    let found = whole.finish();
    assert!(form.marks().iter().all(|m| !shown.contains(m) || found.0.contains(m)), "{answer}: {shown}");
    assert_eq!(found, pieces.finish(), "{answer}");
    found
}

#[test]
fn answers_are_taken_apart_as_their_family_does() {
    let opened = "<|im_start|>assistant\n<think>\n";
    for (form, prompt, answer, content, thinking) in [
        (Form::Plain, "", "<think>a</think>b", "<think>a</think>b", ""),
        (Form::Think, "", "<think>\na\n</think>\n\nb", "b", "a"),
        (Form::Think, "", "\n<think>\na\n\nb\n</think>\n\nc\n", "c\n", "a\n\nb"),
        (Form::Think, "", "<think>\n\n</think>\n\nb", "b", ""),
        (Form::Think, "", " plain < text", " plain < text", ""),
        (Form::Think, opened, "a\n</think>\n\nb", "b", "a"),
        (Form::Think, "<think>\n\n</think>\n\n", "the </think> tag", "the </think> tag", ""),
        (Form::Think, opened, "a that never ends", "", "a that never ends"),
        (Form::Think, "", "<think>a that never ends </thi", "", "a that never ends </thi"),
        (Form::Think, "", "no mark\n</think>\nb", "b", "no mark"),
        (Form::Think, "", "<think>a</think>b </think> c", "b </think> c", "a"),
        (Form::Think, "", "say <think> aloud", "say <think> aloud", ""),
        (Form::Think, "", "<think>a</think><response>b</response>", "b", "a"),
        (Form::Brackets, "", "[THINK]a[/THINK]b", "b", "a"),
        (Form::Brackets, "", "[b]", "[b]", ""),
        (Form::Cohere, "", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "b", "a"),
        (Form::Cohere, "", "<|START_RESPONSE|>b<|END_RESPONSE|>", "b", ""),
        (Form::Cohere, "", "b", "b", ""),
        (Form::Channels, "<|start|>assistant", "<|channel|>final<|message|>Hello", "Hello", ""),
        (
            Form::Channels,
            "<|start|>assistant",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
            "b",
            "a",
        ),
        (
            Form::Channels,
            "<|start|>assistant",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>one<|end|>\
             <|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>two",
            "two",
            "a\n\nb",
        ),
        (Form::Channels, "", "<|channel|>commentary<|message|>I look.<|end|>", "I look.", ""),
        (
            Form::Channels,
            "",
            "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
            "",
            "{}",
        ),
        (
            Form::Channels,
            "<|start|>assistant",
            " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
            "",
            "{}",
        ),
        (Form::Channels, "", "<|channel|>analysis<|message|>cut off", "", "cut off"),
        (Form::Channels, "", "<|chann", "", ""),
    ] {
        let found = split(form, prompt, answer);
        assert_eq!((&*found.0, found.1.as_deref().unwrap_or("")), (content, thinking), "{form:?}: {answer}");
    }
}

#[test]
fn messages_of_one_part_are_shown_as_paragraphs() {
    let answer = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>one<|end|>\
                  <|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>two";
    let mut parts = Parts::new(Form::Channels, "<|start|>assistant");
    let mut found = [String::new(), String::new()];
    for (part, text) in parts.push(answer).into_iter().chain(parts.rest()) {
        found[usize::from(part == Part::Thinking)] += &text;
    }
    assert_eq!(found, ["one\n\ntwo", "a\n\nb"]);
}

/// The recipient stands in the channel's header or before it, and the type of the content may have a mark.
#[test]
fn calls_of_gpt_oss_can_be_content() {
    let call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{\"a\":1}";
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    for (answer, content, thinking) in [
        (format!("{call}<|call|>"), call, ""),
        (format!("{thought}{call}<|call|>"), call, "Hm."),
        (format!("{thought} to=functions.now<|channel|>commentary json<|message|>{{\"a\":1}}"), call, "Hm."),
        (" to=functions.now<|channel|>commentary <|constrain|>json<|message|>{\"a\":1}".into(), call, ""),
        ("<|channel|>commentary to=functions.now<|constrain|>json<|message|>{\"a\":1}".into(), call, ""),
        ("<|channel|>analysis to=python code<|message|>1".into(), "", "1"),
        ("<|channel|>commentary to=functions.now <|message|>1<|end|><|start|>assistant<|channel|>final<|message|>b".into(),
            "<|channel|>commentary to=functions.now <|constrain|>json<|message|>1b", ""),
    ] {
        let mut parts = Parts::new(Form::Channels, "<|start|>assistant").with_calls(true);
        let mut found = [String::new(), String::new()];
        let pieces: Vec<_> = answer.chars().flat_map(|c| parts.push(c.encode_utf8(&mut [0; 4]))).collect();
        for (part, text) in pieces.into_iter().chain(parts.rest()) {
            found[usize::from(part == Part::Thinking)] += &text;
        }
        assert_eq!(found, [content, thinking], "{answer}");
    }
}

#[test]
fn a_template_says_which_form_its_answers_have() {
    for (template, form) in [
        ("{{ '<|im_start|>' }}", Form::Plain),
        ("{{ content.split('</think>')[-1] }}", Form::Think),
        ("{{ '[THINK]' + x + '[/THINK]' }}", Form::Brackets),
        ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>", Form::Cohere),
        ("<|start|>assistant<|channel|>final<|message|>", Form::Channels),
    ] {
        assert_eq!(Form::of(template), form, "{template}");
    }
}
