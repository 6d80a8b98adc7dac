//! The identity of a model's tensors: which layer they belong to and what they do there, and their names in
//! GGUF and adapter files. Inside the program only these identifiers travel; names are made and parsed where
//! files are.

use std::fmt;

/// Roles, each with its name in GGUF files, and the identity of what has such a role. Linear maps also have the short name
/// that users give them as LoRA targets.
macro_rules! roles {
    ($(#[$of_enum:meta])* $name:ident in $table:ident: $row:ty {
        $($(#[$of_role:meta])* $role:ident $($text:literal)+;)*
    } $(#[$of_id:meta])* $id:ident) => {
        $(#[$of_enum])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$of_role])* $role,)*
        }

        const $table: &[$row] = &[$(($name::$role, $($text),+)),*];

        $(#[$of_id])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $id {
            /// The layer; `None` for the output.
            pub layer: Option<usize>,
            /// The role in the layer.
            pub role: $name,
        }

        impl $id {
            /// The one of the output, which belongs to no layer.
            pub const OUTPUT: $id = $id { layer: None, role: $name::Output };

            /// The one of layer `il`.
            pub fn layer(il: usize, role: $name) -> $id {
                $id { layer: Some(il), role }
            }

            /// The name of its weight in GGUF files: `blk.3.attn_q.weight`, `output.weight`.
            pub fn weight(self) -> String {
                format!("{self}.weight")
            }

            /// The one whose weight has this name in GGUF files.
            pub fn from_weight(name: &str) -> Option<$id> {
                let (layer, part) = split(name)?;
                let role = $table.iter().find(|r| r.1 == part)?.0;
                (layer.is_none() == (role == $name::Output)).then_some($id { layer, role })
            }
        }

        /// The name in GGUF files, without its suffix: `blk.3.attn_q`.
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let part = $table[self.role as usize].1;
                match self.layer {
                    Some(il) => write!(f, "blk.{il}.{part}"),
                    None => f.write_str(part),
                }
            }
        }
    };
}

roles! {
    /// The role of a linear map in its layer.
    Role in ROLES: (Role, &str, &str) {
        /// Queries.
        Q "attn_q" "q";
        /// Keys.
        K "attn_k" "k";
        /// Values.
        V "attn_v" "v";
        /// Queries, keys and values as one map, in this order.
        Qkv "attn_qkv" "qkv";
        /// Output projection of attention.
        O "attn_output" "o";
        /// Gate of what a gated delta-net gives.
        AttnGate "attn_gate" "attn_gate";
        /// How much of its state a gated delta-net forgets, a number for each head.
        SsmAlpha "ssm_alpha" "ssm_alpha";
        /// How much a gated delta-net learns from a token, a number for each head.
        SsmBeta "ssm_beta" "ssm_beta";
        /// Output projection of a gated delta-net.
        SsmOut "ssm_out" "ssm_out";
        /// Gate of a gated feed-forward.
        Gate "ffn_gate" "gate";
        /// Up projection of the feed-forward; where the file has no separate gate, it may hold both, the gate
        /// first (Phi-3).
        Up "ffn_up" "up";
        /// Down projection of the feed-forward.
        Down "ffn_down" "down";
        /// Router of a mixture of experts: a logit for each.
        Router "ffn_gate_inp" "router";
        /// Gates of all experts, `[n_in, n_out, n_expert]`.
        GateExps "ffn_gate_exps" "gate_exps";
        /// Up projections of all experts.
        UpExps "ffn_up_exps" "up_exps";
        /// Down projections of all experts.
        DownExps "ffn_down_exps" "down_exps";
        /// How much of the expert that every token is given to is taken.
        SharedRouter "ffn_gate_inp_shexp" "shared_router";
        /// Gate of that expert.
        SharedGate "ffn_gate_shexp" "shared_gate";
        /// Up projection of that expert.
        SharedUp "ffn_up_shexp" "shared_up";
        /// Down projection of that expert.
        SharedDown "ffn_down_shexp" "shared_down";
        /// Output matrix, from the residual stream to logits; belongs to no layer.
        Output "output" "output";
    }
    /// One linear map of a model: the key of LoRA pairs, saved activations, gradients and optimizer state.
    LinearId
}

roles! {
    /// The values that a norm is applied to.
    NormRole in NORM_ROLES: (NormRole, &str) {
        /// The input of attention.
        Attn "attn_norm";
        /// The input of the feed-forward.
        Ffn "ffn_norm";
        /// Each query head, or all of them as one.
        Q "attn_q_norm";
        /// Each key head, or all of them as one.
        K "attn_k_norm";
        /// The output of attention.
        AttnPost "post_attention_norm";
        /// Each head of what a gated delta-net gives.
        Ssm "ssm_norm";
        /// The output of the feed-forward.
        FfnPost "post_ffw_norm";
        /// The residual stream before the output matrix; belongs to no layer.
        Output "output_norm";
    }
    /// One norm of a model; its weight is the scale.
    NormId
}

/// A tensor that an adapter adds or replaces, and that fine-tuning can train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParamId {
    /// A of the low-rank pair of a weight, `[n_in, rank]`.
    LoraA(LinearId),
    /// B of the low-rank pair of a weight, `[rank, n_out]`.
    LoraB(LinearId),
    /// The weight of a linear map, replaced as a whole.
    Weight(LinearId),
    /// The bias of a linear map.
    Bias(LinearId),
    /// The scale of a norm.
    Norm(NormId),
    /// The bias of a norm.
    NormBias(NormId),
    /// The token embedding, which is also the output matrix of models with tied embeddings.
    Embedding,
    /// The embedding of the landmark token, `[n_embd]`, which no model's file has.
    LandmarkEmbedding,
    /// The row of the output matrix for the landmark token, `[n_embd]`, which no model's file has.
    LandmarkOutput,
    /// Up projection of the network of the rope method `clex`, `[n_rot/2, n_hidden]`; no model has it.
    ClexUp,
    /// Down projection of the CLEX network, `[n_hidden, n_rot/2]`.
    ClexDown,
}

/// Name of the token embedding, which is also the output matrix where a file has none.
pub const TOKEN_EMBD: &str = "token_embd.weight";

/// Name of the embedding of the landmark token in adapter files.
pub const LANDMARK_EMBD: &str = "landmark_embd.weight";

/// Name of the landmark token's row of the output matrix in adapter files.
pub const LANDMARK_OUTPUT: &str = "landmark_output.weight";

/// Name of the attention sinks of layer `il`, which nothing trains or replaces.
pub fn sinks(il: usize) -> String {
    format!("blk.{il}.attn_sinks.weight")
}

/// Names of the tensors of layer `il`'s gated delta-net that nothing trains or replaces: the convolution's weights,
/// `[n_conv, n_embd_conv]`; what is added to alpha, and the factor on the rate of forgetting, both `[n_head_v]`.
pub fn delta_net(il: usize) -> [String; 3] {
    ["ssm_conv1d.weight", "ssm_dt.bias", "ssm_a"].map(|part| format!("blk.{il}.{part}"))
}

impl Role {
    /// Every role, in the order of a layer.
    pub fn all() -> impl Iterator<Item = Role> {
        ROLES.iter().map(|r| r.0)
    }

    /// Returns true if it is a projection of each expert, whose weights are one tensor. These have no LoRA pairs.
    pub fn is_stack(self) -> bool {
        matches!(self, Role::GateExps | Role::UpExps | Role::DownExps)
    }

    /// Name in GGUF files, without layer and suffix: `attn_q`.
    pub fn gguf(self) -> &'static str {
        ROLES[self as usize].1
    }

    /// Name as a LoRA target: `q`.
    pub fn target(self) -> &'static str {
        ROLES[self as usize].2
    }

    /// The role of a LoRA target.
    pub fn from_target(target: &str) -> Option<Role> {
        ROLES.iter().find(|r| r.2 == target).map(|r| r.0)
    }
}

impl ParamId {
    /// Returns true if it is part of the network of the RoPE method `clex`, which belongs to no layer.
    pub fn is_clex(self) -> bool {
        matches!(self, ParamId::ClexUp | ParamId::ClexDown)
    }

    /// Returns true if it is half of a LoRA pair.
    pub fn is_lora(self) -> bool {
        matches!(self, ParamId::LoraA(_) | ParamId::LoraB(_))
    }

    /// Returns true if weight decay applies to it. Norms and biases do not decay.
    pub fn decays(self) -> bool {
        !matches!(self, ParamId::Bias(_) | ParamId::Norm(_) | ParamId::NormBias(_))
    }

    /// The parameter of this name that only adapters have, and that a model with landmarks needs.
    pub fn added(name: &str) -> Option<ParamId> {
        let known = [ParamId::LandmarkEmbedding, ParamId::LandmarkOutput];
        known.into_iter().find(|id| id.to_string() == name)
    }

    /// The tensor of a model's file that an adapter replaces under this name; `None` for other tensors, pairs
    /// included.
    pub fn replaced(name: &str) -> Option<ParamId> {
        if name == TOKEN_EMBD {
            return Some(ParamId::Embedding);
        }
        if let Some(of) = name.strip_suffix(".bias").map(|part| format!("{part}.weight")) {
            let map = || LinearId::from_weight(&of).map(ParamId::Bias);
            return NormId::from_weight(&of).map(ParamId::NormBias).or_else(map);
        }
        let weight = || LinearId::from_weight(name).map(ParamId::Weight);
        NormId::from_weight(name).map(ParamId::Norm).or_else(weight)
    }
}

/// Layer and part of `blk.3.attn_q.weight`; no layer for `output.weight`.
fn split(name: &str) -> Option<(Option<usize>, &str)> {
    let name = name.strip_suffix(".weight")?;
    let Some(rest) = name.strip_prefix("blk.") else { return Some((None, name)) };
    let (layer, part) = rest.split_once('.')?;
    let il: usize = layer.parse().ok()?;
    // One spelling for each layer: `blk.03.attn_q` is no name of layer 3.
    (il.to_string() == layer).then_some((Some(il), part))
}

/// The name in adapter files and checkpoints: `blk.3.attn_q.weight.lora_a`, `output_norm.weight`.
impl fmt::Display for ParamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamId::LoraA(id) => write!(f, "{id}.weight.lora_a"),
            ParamId::LoraB(id) => write!(f, "{id}.weight.lora_b"),
            ParamId::Weight(id) => write!(f, "{id}.weight"),
            ParamId::Bias(id) => write!(f, "{id}.bias"),
            ParamId::Norm(id) => write!(f, "{id}.weight"),
            ParamId::NormBias(id) => write!(f, "{id}.bias"),
            ParamId::Embedding => f.write_str(TOKEN_EMBD),
            ParamId::LandmarkEmbedding => f.write_str(LANDMARK_EMBD),
            ParamId::LandmarkOutput => f.write_str(LANDMARK_OUTPUT),
            ParamId::ClexUp => f.write_str("clex.up.weight"),
            ParamId::ClexDown => f.write_str("clex.down.weight"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for role in Role::all() {
            let layer = if role == Role::Output { None } else { Some(17) };
            let id = LinearId { layer, role };
            assert_eq!(LinearId::from_weight(&id.weight()), Some(id));
            assert_eq!(Role::from_target(role.target()), Some(role));
            for param in [ParamId::Weight(id), ParamId::Bias(id)] {
                assert_eq!(ParamId::replaced(&param.to_string()), Some(param));
            }
        }
        for &(role, _) in NORM_ROLES {
            let layer = if role == NormRole::Output { None } else { Some(0) };
            let id = NormId { layer, role };
            assert_eq!(NormId::from_weight(&id.weight()), Some(id));
            for param in [ParamId::Norm(id), ParamId::NormBias(id)] {
                assert_eq!(ParamId::replaced(&param.to_string()), Some(param));
            }
        }
    }

    #[test]
    fn other_names_are_no_identifiers() {
        for name in [
            "attn_q.weight",
            "blk.0.output.weight",
            "blk.0.attn_q",
            "blk.00.attn_q.weight",
            "blk.x.attn_q.weight",
        ] {
            assert_eq!(LinearId::from_weight(name), None, "{name}");
        }
        assert_eq!(ParamId::replaced("rope_freqs.weight"), None);
    }
}
