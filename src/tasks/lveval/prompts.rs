//! The prompts of `config.py`, with the fields `{context}` and `{input}`.

/// `hotpotwikiqa_mixup`.
pub(super) const SOME_PASSAGES: &str = "\
    Answer the question based on the given passages. Questions and answers are only relevant to some \
    passages. Only give me the answer and do not output any other explanation and evidence.\n\
    \n\
    Article: {context}\n\
    \n\
    Please answer the following question based on the above passages. Questions and answers are only \
    relevant to some passages. Only give me the answer and do not output any other explanation and \
    evidence.\n\
    \n\
    Question: {input}\n\
    Answer:";

/// `loogle_SD_mixup`, `loogle_CR_mixup`, `loogle_MIR_mixup` and `multifieldqa_en_mixup`.
pub(super) const ONE_PASSAGE: &str = "\
    Please answer the following question based on the given passages. Questions and answers are only \
    relevant to one passage. Only give me the answer and do not output any other explanation and \
    evidence.\n\
    \n\
    Article: {context}\n\
    \n\
    Please answer the following question based on the above passages. Questions and answers are only \
    relevant to one passage. Only give me the answer and do not output any other explanation and \
    evidence.\n\
    \n\
    Question: {input}\n\
    Answer:";

/// `multifieldqa_zh_mixup`.
pub(super) const MULTIFIELDQA_ZH: &str = "\
    请阅读以下文章并用中文回答问题，问题和答案只与其中一篇文章有关。只需要直接给出问题的答案，不要输出其他任何解释和证据。\n\
    \n\
    文章：{context}\n\
    \n\
    请基于上面的文章回答下面的问题，问题和答案只与其中一篇文章有关。只需要直接给出问题的答案，不要输出其他任何解释和证据。\n\
    \n\
    问题：{input}\n\
    回答：";

/// `factrecall_en`.
pub(super) const FACTRECALL_EN: &str = "\
    Please answer the following questions based on the given article.\n\
    \n\
    Article: {context}\n\
    \n\
    Please answer the following questions based on the above article.\n\
    \n\
    Question: {input}\n\
    Answer:";

/// `factrecall_zh`.
pub(super) const FACTRECALL_ZH: &str = "\
    请基于给定的文章回答下述问题。\n\
    \n\
    文章：{context}\n\
    \n\
    现在请基于上述文章回答下面的问题。\n\
    \n\
    问题：{input}\n\
    回答：";

/// `cmrc_mixup` and `dureader_mixup`.
pub(super) const CMRC: &str = "\
    请根据下面给定的文章回答问题，问题和答案只与其中一篇文章有关。\n\
    \n\
    文章：{context}\n\
    \n\
    现在请基于上述文章回答下面的问题，问题和答案只与其中一篇文章有关。\n\
    \n\
    问题：{input}\n\
    回答：";

/// `lic_mixup`.
pub(super) const LIC: &str = "\
    请根据下面给定的文章回答问题，问题和答案只与其中一篇文章有关。\n\
    \n\
    文章：{context}\n\
    \n\
    请现在基于上述文章回答下面的问题，问题和答案只与其中一篇文章有关。\n\
    \n\
    问题：{input}\n\
    回答：";
