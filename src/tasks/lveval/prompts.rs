//! The prompts of `config.py`, with the fields `{context}` and `{input}`.

/// Prompts in one language, which has a word for the article, the question, and the answer: what is to be done with
/// the article, and the same once more behind it.
macro_rules! prompts {
    ([$article:literal $question:literal $answer:literal]
        $($(#[$doc:meta])* $id:ident $before:literal, $again:literal;)*) => { $(
        $(#[$doc])*
        pub(super) const $id: &str = concat!(
            $before, "\n\n", $article, "{context}\n\n", $again, "\n\n", $question, "{input}\n", $answer
        );
    )* };
}

prompts! { ["Article: " "Question: " "Answer:"]
    /// `hotpotwikiqa_mixup`.
    SOME_PASSAGES
        "Answer the question based on the given passages. Questions and answers are only relevant to some passages. \
         Only give me the answer and do not output any other explanation and evidence.",
        "Please answer the following question based on the above passages. Questions and answers are only relevant \
         to some passages. Only give me the answer and do not output any other explanation and evidence.";
    /// `loogle_SD_mixup`, `loogle_CR_mixup`, `loogle_MIR_mixup` and `multifieldqa_en_mixup`.
    ONE_PASSAGE
        "Please answer the following question based on the given passages. Questions and answers are only relevant \
         to one passage. Only give me the answer and do not output any other explanation and evidence.",
        "Please answer the following question based on the above passages. Questions and answers are only relevant \
         to one passage. Only give me the answer and do not output any other explanation and evidence.";
    /// `factrecall_en`.
    FACTRECALL_EN
        "Please answer the following questions based on the given article.",
        "Please answer the following questions based on the above article.";
}

prompts! { ["文章：" "问题：" "回答："]
    /// `multifieldqa_zh_mixup`.
    MULTIFIELDQA_ZH
        "请阅读以下文章并用中文回答问题，问题和答案只与其中一篇文章有关。只需要直接给出问题的答案，不要输出其他任何解释和证据。",
        "请基于上面的文章回答下面的问题，问题和答案只与其中一篇文章有关。只需要直接给出问题的答案，不要输出其他任何解释和证据。";
    /// `factrecall_zh`.
    FACTRECALL_ZH
        "请基于给定的文章回答下述问题。",
        "现在请基于上述文章回答下面的问题。";
    /// `cmrc_mixup` and `dureader_mixup`.
    CMRC
        "请根据下面给定的文章回答问题，问题和答案只与其中一篇文章有关。",
        "现在请基于上述文章回答下面的问题，问题和答案只与其中一篇文章有关。";
    /// `lic_mixup`.
    LIC
        "请根据下面给定的文章回答问题，问题和答案只与其中一篇文章有关。",
        "请现在基于上述文章回答下面的问题，问题和答案只与其中一篇文章有关。";
}
