//! GraphWalks: a graph as a list of edges, and a set of nodes to find in it.
//!
//! Prompts are those of the published rows (OpenAI, 2025, the wording of that year), answers are read as HELMET
//! reads them. The graphs are our own: published rows say nothing of how theirs were drawn. A node is ten
//! hexadecimal digits; each node has one edge to another node, every second one two, on average; edges stand in the
//! order of their first nodes. A breadth-first search asks for the nodes whose distance is exactly its depth.

use std::collections::{HashMap, HashSet};

use super::{random, SAMPLES};
use crate::draws::Random;
use crate::metrics::python::is_space;
use crate::{text, Answer, Ask, Error, Info, Opt, Result, Sample, Samples, Setup, Task, Template};

static DEPTH: Opt = Opt {
    name: "depth",
    values: &["10", "8", "5", "3", "2", "1"],
    default: "10",
    about: "edges from the first node of a search to the nodes asked for; HELMET has 10, 8 and 5",
};

const SOURCE: &str = "OpenAI GraphWalks (2025), openai/graphwalks; answers, budgets and score after HELMET \
                      at 5dde2de, data_module/graphwalk.py";

pub(super) static BFS: GraphWalks = GraphWalks {
    info: Info {
        name: "graphwalks_bfs",
        about: "The nodes of a graph that a breadth-first search reaches at a depth.",
        source: SOURCE,
        metrics: &["f1", "exact"],
        samples: Some(SAMPLES),
        options: &[&DEPTH],
        ..Info::OF_LENGTH
    },
    search: true,
    stream: 2,
};

pub(super) static PARENTS: GraphWalks = GraphWalks {
    info: Info {
        name: "graphwalks_parents",
        about: "The nodes of a graph with an edge to a node.",
        source: SOURCE,
        metrics: &["f1", "exact"],
        samples: Some(SAMPLES),
        ..Info::OF_LENGTH
    },
    search: false,
    stream: 3,
};

/// Edges of the smallest graph.
const LEAST_EDGES: usize = 12;
/// Graphs drawn before giving up on a question.
const GRAPHS: usize = 200;
/// Tokens of the answer besides its list.
const SPARE_TOKENS: usize = 8;

pub(super) struct GraphWalks {
    info: Info,
    search: bool,
    stream: u64,
}

impl Task for GraphWalks {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let search = self.search.then(|| setup.number(&DEPTH, 1..=10)).transpose()?;
        // generation_max_length of graphwalk_bfs, _dep8 and _dep5.
        let max_tokens = match search {
            Some(10) => 1000,
            Some(8) => 500,
            Some(_) => 200,
            None => 100,
        };
        Ok(Samples::new(setup, setup.samples.unwrap_or(SAMPLES), move |i| {
            let random = &mut random(setup, self.stream, i);
            let count = |text: &str| setup.encoder.count(text);
            let probe = Graph::draw(random, 64);
            let bare = framed(setup, &prompt(&Graph::default(), &question(&probe.names[0], search)))?;
            let per_edge = count(&probe.list())?.div_ceil(probe.edges.len()).max(1);
            let taken = count(&bare)? + max_tokens;
            let room = length.saturating_sub(taken);
            let mut n = room / per_edge;
            // The estimate is rounded up: a few edges more may fit.
            n += n / 16;
            for _ in 0..GRAPHS {
                setup.check_stopped()?;
                if n < LEAST_EDGES {
                    break;
                }
                let graph = Graph::draw(random, n);
                let Some((node, answer)) =
                    graph.ask(random, search, |list| Ok(count(list)? + SPARE_TOKENS <= max_tokens))?
                else {
                    continue;
                };
                let prompt = framed(setup, &prompt(&graph, &question(&graph.names[node], search)))?;
                let found = count(&prompt)? + max_tokens;
                if found > length {
                    n = n.saturating_sub(1 + (found - length) / per_edge);
                    continue;
                }
                let nodes = answer.len();
                let list = format!("[{}]", answer.join(", "));
                return Ok(Sample {
                    id: i.to_string(),
                    prompt,
                    ask: Ask::Generate { max_tokens, min_tokens: 0, stop: Vec::new() },
                    expected: Answer::Text(format!("Final Answer: {list}")),
                    tags: vec![("edges", n.to_string()), ("nodes", nodes.to_string())],
                    judge: Box::new(move |said| scores(said.text(), &answer)),
                });
            }
            let what = search.map_or("parents".into(), |depth| format!("a search of depth {depth}"));
            Err(Error::invalid(format!(
                "a length of {length} tokens does not hold a graph for {what}: expected at least {}",
                taken + per_edge * if search.unwrap_or(1) > 3 { 96 } else { 2 * LEAST_EDGES }
            )))
        }))
    }
}

/// Nodes by name, edges by number of node.
#[derive(Default)]
struct Graph {
    names: Vec<String>,
    edges: Vec<(usize, usize)>,
}

impl Graph {
    /// A graph with `n` edges: two nodes for three of them.
    fn draw(random: &mut Random, n: usize) -> Graph {
        let nodes = (2 * n / 3).max(4);
        let mut taken = HashSet::with_capacity(nodes);
        let mut names = Vec::with_capacity(nodes);
        while names.len() < nodes {
            let name = format!("{:010x}", random.getrandbits(40));
            if taken.insert(name.clone()) {
                names.push(name);
            }
        }
        let mut known = HashSet::with_capacity(n);
        let mut edges = Vec::with_capacity(n);
        while edges.len() < n {
            let from = if edges.len() < nodes { edges.len() } else { random.below(nodes) };
            let edge = (from, random.below(nodes));
            if edge.0 != edge.1 && known.insert(edge) {
                edges.push(edge);
            }
        }
        edges.sort_by_key(|&(from, _)| from);
        Graph { names, edges }
    }

    /// The edges, one on each line.
    fn list(&self) -> String {
        let name = |node: usize| &self.names[node];
        self.edges.iter().map(|&(from, to)| format!("{} -> {}\n", name(from), name(to))).collect()
    }

    /// A node to ask about, and the names that answer: at least one, and `fits` of them as a list.
    fn ask(
        &self,
        random: &mut Random,
        search: Option<usize>,
        fits: impl Fn(&str) -> Result<bool>,
    ) -> Result<Option<(usize, Vec<String>)>> {
        let mut neighbours: HashMap<usize, Vec<usize>> = HashMap::new();
        for &(from, to) in &self.edges {
            let (at, next) = if search.is_some() { (from, to) } else { (to, from) };
            neighbours.entry(at).or_default().push(next);
        }
        for _ in 0..20 {
            let node = random.below(self.names.len());
            let mut seen = HashSet::from([node]);
            let mut layer = vec![node];
            for _ in 0..search.unwrap_or(1) {
                let reached = layer.iter().filter_map(|at| neighbours.get(at)).flatten();
                layer = reached.copied().filter(|&next| seen.insert(next)).collect();
            }
            let names: Vec<_> = layer.iter().map(|&node| self.names[node].clone()).collect();
            if !names.is_empty() && fits(&format!("[{}]", names.join(", ")))? {
                return Ok(Some((node, names)));
            }
        }
        Ok(None)
    }
}

fn question(node: &str, search: Option<usize>) -> String {
    match search {
        Some(depth) => format!("Perform a BFS from node {node} with depth {depth}."),
        None => format!("Find the parents of node {node}."),
    }
}

/// The prompt of the published rows.
fn prompt(graph: &Graph, operation: &str) -> String {
    let template = include_str!("graphwalks.txt").trim_end();
    text::fill(template, &[("{edges}", &graph.list()), ("{operation}", operation)])
}

/// For base models HELMET begins the answer.
fn framed(setup: &Setup, prompt: &str) -> Result<String> {
    match setup.template {
        Template::Base => setup.encoder.frame(&format!("{prompt}\n\nFinal Answer:")),
        Template::Chat => setup.encoder.frame(prompt),
    }
}

/// The nodes of an answer: the list after "Final Answer:", or the first one (`_parse_list`).
pub fn parse_list(said: &str) -> Vec<&str> {
    const MARK: &str = "final answer:";
    let marked = said.char_indices().find_map(|(at, _)| {
        let found = said.get(at..at + MARK.len())?.eq_ignore_ascii_case(MARK);
        let behind = &said[at..].get(MARK.len()..).filter(|_| found)?;
        behind.strip_prefix(' ').unwrap_or(behind).strip_prefix('[')
    });
    let list = marked.or_else(|| said.split_once('[').map(|(_, list)| list)).unwrap_or_default();
    let list = list.split(']').next().unwrap_or_default();
    list.split(',').map(|item| item.trim_matches(is_space)).filter(|item| !item.is_empty()).collect()
}

/// F1 of the nodes as HELMET counts it, and whether they are exactly the right ones.
pub fn scores(said: &str, answer: &[String]) -> Vec<f64> {
    let found = parse_list(said);
    let said: HashSet<&str> = found.iter().copied().collect();
    let right: HashSet<&str> = answer.iter().map(String::as_str).collect();
    let common = said.intersection(&right).count() as f64;
    let exact = f64::from(u8::from(said == right));
    if answer.is_empty() {
        return vec![exact, exact];
    }
    // Nodes named twice count twice against the precision.
    let recall = common / answer.len() as f64;
    let precision = if found.is_empty() { 0.0 } else { common / found.len() as f64 };
    let sum = recall + precision;
    vec![if sum > 0.0 { 2.0 * (recall * precision) / sum } else { 0.0 }, exact]
}
