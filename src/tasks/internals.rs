//! Parts of tasks, for this crate's tests. They can change in every version.

pub mod babilong {
    //! BABILong.
    pub use crate::made::babilong::noise::Noise;
    pub use crate::made::babilong::pcg64::DefaultRng;
    pub use crate::made::babilong::{compare_answers, prompt, GIFTS, PLACES};
}
pub mod data {
    //! Files.
    pub use crate::data::read_documents;
}
pub mod draws {
    //! Random draws.
    pub use crate::draws::mt19937::Mt19937;
    pub use crate::draws::{Random, RandomState};
}
pub mod graphwalks {
    //! Walks in graphs.
    pub use crate::made::graphwalks::{parse_list, scores};
}
pub mod infinitebench {
    //! InfiniteBench.
    pub use crate::infinitebench::{InfiniteBench, Record, EN_DIA, EN_MC, EN_QA, EN_SUM, ZH_QA};
}
pub mod json_kv {
    //! Values of keys.
    pub use crate::made::json_kv::{substring_exact_match, user_prompt};
}
pub mod longbench {
    //! LongBench.
    pub use crate::longbench::questions::labels;
    pub use crate::longbench::record::Form;
}
pub mod lveval {
    //! LV-Eval.
    pub use crate::lveval::sets::*;
    pub use crate::lveval::shots::{pseudo, titles};
    pub use crate::lveval::{max_prompt, LvEval};
}
pub mod needle {
    //! Scores of needles.
    pub use crate::needle::kamradt::scores;
    pub use crate::needle::lceg::word_share;
}
pub mod passkey {
    //! Passkeys.
    pub use crate::passkey::{below, first_number, largest_fitting, Depth, Draw, Rules, PROBE};
}
pub mod ruler {
    //! RULER.
    pub use crate::ruler::cwe::numbered;
    pub use crate::ruler::fwe::ZETA_2;
    pub use crate::ruler::niah::ANSWER;
    pub use crate::ruler::qa::read::{hotpotqa, squad};
    pub use crate::ruler::qa::{python_list, Question, Set};
    pub use crate::ruler::{judge, postprocess, string_match_all, string_match_part, Metric, NIAH};
}
pub mod short {
    //! Short tasks.
    pub use crate::short::arrow::rows;
    pub use crate::short::mmlu::FILES;
    pub use crate::short::prompt::Part;
    pub use crate::short::python::capitalize;
    pub use crate::short::source::{without_wikihow, Question, ReadFile};
    pub use crate::short::{
        mmlu_part, Short, ALL, ARC_CHALLENGE, GSM8K_COT, GSM8K_TASK, HELLASWAG_TASK, MMLU, NQ_OPEN_TASK,
        PIQA_TASK, TRIVIAQA_TASK,
    };
}
pub mod text {
    //! Sentences, and texts that are cut.
    pub use crate::text::{cut_middle, Punkt};
}
