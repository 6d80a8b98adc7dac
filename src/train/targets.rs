//! Resolves the names of LoRA targets to linear layers of a model.

use crate::hparams::Hparams;
use crate::ids::{LinearId, Role};
use crate::layers::LinearShape;
use crate::model::{Error, Model, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layers {
    All,
    Attention,
    DeltaNet,
}

impl Layers {
    /// The layers and the rest of a target.
    fn of(target: &str) -> (Layers, &str) {
        let prefixed = |layers: Layers| Some((layers, target.strip_prefix(layers.prefix())?));
        [Layers::Attention, Layers::DeltaNet].into_iter().find_map(prefixed).unwrap_or((Layers::All, target))
    }

    fn prefix(self) -> &'static str {
        match self {
            Layers::All => "",
            Layers::Attention => "attention.",
            Layers::DeltaNet => "delta-net.",
        }
    }

    fn have(self, hp: &Hparams, id: LinearId) -> bool {
        let attends = id.layer.and_then(|il| hp.layers.get(il)).map(|layer| layer.kind.is_some());
        match self {
            Layers::All => true,
            Layers::Attention => attends == Some(true),
            Layers::DeltaNet => attends == Some(false),
        }
    }
}

/// The maps that these targets name, each once, by role and then by layer.
pub(super) fn maps(model: &Model, targets: &[String]) -> Result<Vec<LinearShape>> {
    let (hp, all) = (model.hparams(), model.transformer().linears());
    let mut found: Vec<LinearShape> = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        if targets[..i].contains(target) {
            return Err(Error::Invalid(format!("targets: {target:?} is listed twice")));
        }
        let (layers, name) = Layers::of(target);
        let there: Vec<LinearShape> = all.iter().filter(|m| layers.have(hp, m.id)).copied().collect();
        let roles = roles(&there, name, target)?;
        found.extend(there.into_iter().filter(|m| roles.contains(&m.id.role)));
    }
    // In the model's order, whatever that of the names.
    let mut out: Vec<LinearShape> =
        all.iter().filter(|m| found.iter().any(|found| found.id == m.id)).copied().collect();
    out.sort_by_key(|m| m.id.role);
    Ok(out)
}

/// Returns true if the up projection of the first layer is wider than the input of the down projection.
fn up_holds_gate(maps: &[LinearShape]) -> bool {
    let of = |role: Role| maps.iter().find(|m| m.id.role == role);
    of(Role::Up).zip(of(Role::Down)).is_some_and(|(up, down)| up.n_out == 2 * down.n_in)
}

/// The roles that a name means among these maps, one at least; `target` is the name in full.
fn roles(maps: &[LinearShape], name: &str, target: &str) -> Result<Vec<Role>> {
    let has = |role: &Role| maps.iter().any(|m| m.id.role == *role);
    let unsupported = |what: String| Err(Error::Unsupported(format!("targets: {what}")));
    let of_layers = |role: &Role| !matches!(role, Role::Output | Role::Router | Role::SharedRouter);
    let found: Vec<Role> = if name == "all" {
        Role::all().filter(of_layers).filter(has).collect()
    } else {
        let Some(role) = Role::from_target(name) else {
            let known =
                Role::all().filter(|role| !role.is_stack()).map(Role::target).collect::<Vec<_>>().join(", ");
            let expected = format!("some of {known}, norms, embeddings; or all; or full");
            return Err(Error::argument("targets", expected, format_args!("{target:?}")));
        };
        if role.is_stack() {
            return unsupported(format!(
                "{target:?}: expert weights cannot have low-rank pairs; q, k, v, o and router can"
            ));
        }
        // Where the map has another name: fused with others, or in layers without attention.
        let others: &[Role] = match role {
            Role::Q | Role::K | Role::V => &[Role::Qkv],
            Role::O => &[Role::SsmOut],
            Role::Gate if up_holds_gate(maps) => &[Role::Up],
            _ => &[],
        };
        std::iter::once(role).chain(others.iter().copied()).filter(has).collect()
    };
    if !found.is_empty() {
        return Ok(found);
    }
    match Layers::of(target).0 {
        Layers::All => {
            let name = Role::from_target(name).map_or(name, |role| role.gguf());
            unsupported(format!("the model has no tensor {name}.weight"))
        }
        Layers::Attention => unsupported(format!("{target:?}: no layer with attention has such a map")),
        Layers::DeltaNet => {
            unsupported(format!("{target:?}: no gated delta-net of the model has such a map"))
        }
    }
}
