//! Words of RULER's needles: an adjective, a hyphen and a noun.

use crate::draws::Random;

/// All pairs in the order of their text, each text once.
///
/// There are millions; only the lists are kept. The pairs of one adjective are neighbors, unless another adjective
/// begins with this one and a hyphen ("old", "old-fashioned"): such adjectives are kept together, written out.
pub(super) struct Pairs {
    /// Sorted, each once.
    nouns: Vec<String>,
    blocks: Vec<Block>,
}

struct Block {
    /// Number of pairs up to the end of this block.
    end: usize,
    pairs: BlockPairs,
}

enum BlockPairs {
    /// The adjective with its hyphen.
    One(String),
    /// All pairs of several adjectives.
    Several(Vec<String>),
}

impl Pairs {
    pub(super) fn new(adjectives: &[String], mut nouns: Vec<String>) -> Pairs {
        nouns.sort_unstable();
        nouns.dedup();
        let mut heads: Vec<String> = adjectives.iter().map(|word| format!("{word}-")).collect();
        heads.sort_unstable();
        heads.dedup();
        let mut blocks = Vec::new();
        let mut end = 0;
        let mut rest = heads.as_slice();
        while let [head, behind @ ..] = rest {
            // What begins with a head follows it directly in the sorted list.
            let n = 1 + behind.iter().take_while(|other| other.starts_with(head.as_str())).count();
            let (together, others) = rest.split_at(n);
            rest = others;
            let pairs = match together {
                [head] => BlockPairs::One(head.clone()),
                _ => {
                    let mut all: Vec<String> = together
                        .iter()
                        .flat_map(|head| nouns.iter().map(move |noun| format!("{head}{noun}")))
                        .collect();
                    all.sort_unstable();
                    all.dedup();
                    BlockPairs::Several(all)
                }
            };
            end += match &pairs {
                BlockPairs::One(_) => nouns.len(),
                BlockPairs::Several(all) => all.len(),
            };
            blocks.push(Block { end, pairs });
        }
        Pairs { nouns, blocks }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }

    /// The pair at a place below [`Pairs::len`].
    pub(super) fn get(&self, index: usize) -> String {
        let i = self.blocks.partition_point(|block| block.end <= index);
        let start = if i == 0 { 0 } else { self.blocks[i - 1].end };
        match &self.blocks[i].pairs {
            BlockPairs::One(head) => format!("{head}{}", self.nouns[index - start]),
            BlockPairs::Several(all) => all[index - start].clone(),
        }
    }

    /// A random pair (`random.choice`).
    pub(super) fn choice(&self, random: &mut Random) -> String {
        self.get(random.below(self.len()))
    }
}

#[test]
fn pairs_are_sorted_and_unique() {
    let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    // "old-fashioned-e" has two readings; "é" sorts after all of ASCII.
    let adjectives = list(&["wet", "old-fashioned", "old", "a", "old-x", "older", "é"]);
    let nouns = list(&["mail", "fashioned-e", "e", "fashioned-zz", "mail", "x", "ño"]);
    let mut expected: Vec<String> =
        adjectives.iter().flat_map(|a| nouns.iter().map(move |n| format!("{a}-{n}"))).collect();
    expected.sort();
    expected.dedup();
    let pairs = Pairs::new(&adjectives, nouns);
    assert_eq!((0..pairs.len()).map(|i| pairs.get(i)).collect::<Vec<_>>(), expected);
}
