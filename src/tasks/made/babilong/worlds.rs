//! Stories of the bAbI tasks 1 to 5 (Weston et al. 2015), generated.
//!
//! Worlds and the choice of facts and questions follow the generator that its authors published
//! (facebookarchive/bAbI-tasks, `lua/babi/tasks/`: WhereIsActor, WhereIsObject, WhereWasObject, IsDir, WhoWhatGave);
//! sentences and persons are those of the data set v1.2, which BABILong uses. In two places the generator is not
//! followed: in task 5 all facts happen (it tells some that do not change its world) and things are put down, as in
//! the data set; in task 2 things that were put down are also asked about.

use crate::draws::Random;

/// A story up to a question.
pub(super) struct Story {
    pub(super) facts: Vec<String>,
    pub(super) question: String,
    pub(super) answer: String,
}

const PLACES: [&str; 6] = ["bedroom", "kitchen", "garden", "hallway", "bathroom", "office"];
const KITCHEN: usize = 1;
const GARDEN: usize = 2;
const OBJECTS: [&str; 3] = ["apple", "football", "milk"];
const ACTORS: [&str; 4] = ["John", "Mary", "Sandra", "Daniel"];
/// The persons of task 5.
const GIVERS: [&str; 4] = ["Bill", "Mary", "Fred", "Jeff"];
/// Questions of a story of the data set; a sample ends with one of them.
const QUESTIONS: usize = 5;

/// A story of a task, 1 to 5.
pub(super) fn story(task: usize, random: &mut Random) -> Story {
    match task {
        1 => where_is_actor(random),
        2 => where_is_object(random),
        3 => where_was_object(random),
        4 => is_dir(random),
        _ => who_what_gave(random),
    }
}

/// Where an object is: with somebody, or somewhere.
#[derive(Clone, Copy, PartialEq)]
enum Holder {
    Actor(usize),
    Place(usize),
}

/// An event.
#[derive(Clone, Copy, PartialEq)]
enum Fact {
    Move { actor: usize, place: usize },
    Get { actor: usize, object: usize },
    Drop { actor: usize, object: usize },
    Give { actor: usize, object: usize, to: usize },
}

/// Kind of event that can happen next.
#[derive(Clone, Copy)]
enum EventKind {
    Move,
    /// Taking something or putting it down.
    GetDrop,
    Get,
    Drop,
    Give,
}

struct World {
    names: [&'static str; 4],
    actors: [usize; 4],
    objects: [Holder; 3],
}

impl World {
    fn new(names: [&'static str; 4]) -> World {
        let [bedroom, hallway] = [0, 3];
        let objects = [KITCHEN, GARDEN, KITCHEN].map(Holder::Place);
        World { names, actors: [KITCHEN, bedroom, GARDEN, hallway], objects }
    }

    /// Something that can happen: of a kind drawn among `kinds`, tried a hundred times, then of another.
    fn next(&self, random: &mut Random, kinds: &[EventKind]) -> Fact {
        loop {
            let kind = *random.choice(kinds);
            for _ in 0..100 {
                let actor = random.below(self.actors.len());
                let object = random.below(self.objects.len());
                let fact = match kind {
                    EventKind::Move => Fact::Move { actor, place: random.below(PLACES.len()) },
                    EventKind::Get => Fact::Get { actor, object },
                    EventKind::Drop => Fact::Drop { actor, object },
                    EventKind::GetDrop if random.below(2) == 0 => Fact::Get { actor, object },
                    EventKind::GetDrop => Fact::Drop { actor, object },
                    EventKind::Give => Fact::Give { actor, object, to: random.below(self.actors.len()) },
                };
                if self.allows(fact) {
                    return fact;
                }
            }
        }
    }

    fn allows(&self, fact: Fact) -> bool {
        match fact {
            Fact::Move { actor, place } => self.actors[actor] != place,
            Fact::Get { actor, object } => self.objects[object] == Holder::Place(self.actors[actor]),
            Fact::Drop { actor, object } => self.objects[object] == Holder::Actor(actor),
            Fact::Give { actor, object, to } => {
                actor != to
                    && self.actors[actor] == self.actors[to]
                    && self.objects[object] == Holder::Actor(actor)
            }
        }
    }

    fn happens(&mut self, fact: Fact) {
        match fact {
            Fact::Move { actor, place } => self.actors[actor] = place,
            Fact::Get { actor, object } | Fact::Give { object, to: actor, .. } => {
                self.objects[object] = Holder::Actor(actor);
            }
            Fact::Drop { actor, object } => self.objects[object] = Holder::Place(self.actors[actor]),
        }
    }

    /// The fact in words of the data set.
    fn tell(&self, random: &mut Random, fact: Fact) -> String {
        let there = |random: &mut Random| *random.choice(&["", " there"]);
        match fact {
            Fact::Move { actor, place } => {
                let verb = random.choice(&["moved", "went", "went back", "journeyed", "travelled"]);
                format!("{} {verb} to the {}.", self.names[actor], PLACES[place])
            }
            Fact::Get { actor, object } => {
                let verb = random.choice(&["got", "took", "grabbed", "picked up"]);
                format!("{} {verb} the {}{}.", self.names[actor], OBJECTS[object], there(random))
            }
            Fact::Drop { actor, object } => {
                let verb = random.choice(&["dropped", "left", "discarded", "put down"]);
                format!("{} {verb} the {}{}.", self.names[actor], OBJECTS[object], there(random))
            }
            Fact::Give { actor, object, to } => {
                let verb = random.choice(&["gave", "handed", "passed"]);
                format!("{} {verb} the {} to {}.", self.names[actor], OBJECTS[object], self.names[to])
            }
        }
    }
}

/// Knowledge that a reader of the facts has.
#[derive(Default)]
struct Knowledge {
    /// Places of the actors, where told.
    actors: [Option<usize>; 4],
    /// Who has an object since which fact, or where it was put down.
    objects: [Option<(Holder, usize)>; 3],
    /// The known places of an object, one after another, with the fact since which it was carried.
    history: [Vec<(usize, usize)>; 3],
    facts: usize,
}

impl Knowledge {
    fn learn(&mut self, fact: Fact) {
        self.facts += 1;
        match fact {
            Fact::Move { actor, place } => self.actors[actor] = Some(place),
            Fact::Get { actor, object } | Fact::Give { object, to: actor, .. } => {
                self.objects[object] = Some((Holder::Actor(actor), self.facts));
            }
            Fact::Drop { actor, object } => {
                self.objects[object] = self.actors[actor].map(|place| (Holder::Place(place), self.facts));
            }
        }
        for object in 0..OBJECTS.len() {
            let Some((place, since)) = self.place(object) else { continue };
            if self.history[object].last().is_none_or(|&(last, _)| last != place) {
                self.history[object].push((place, since));
            }
        }
    }

    /// Where an object is, and since which fact its holder has it.
    fn place(&self, object: usize) -> Option<(usize, usize)> {
        let (holder, since) = self.objects[object]?;
        let place = match holder {
            Holder::Actor(actor) => self.actors[actor]?,
            Holder::Place(place) => place,
        };
        Some((place, since))
    }
}

/// Two moves before each question.
fn where_is_actor(random: &mut Random) -> Story {
    let mut world = World::new(ACTORS);
    let mut knowledge = Knowledge::default();
    let mut facts = Vec::new();
    for _ in 0..2 * random.randint(1, QUESTIONS) {
        let fact = world.next(random, &[EventKind::Move]);
        world.happens(fact);
        knowledge.learn(fact);
        facts.push(world.tell(random, fact));
    }
    let known: Vec<_> = (0..ACTORS.len()).filter_map(|a| Some((a, knowledge.actors[a]?))).collect();
    let &(actor, place) = random.choice(&known);
    Story { facts, question: format!("Where is {}?", ACTORS[actor]), answer: PLACES[place].into() }
}

/// A story of people who move and carry things. After each fact past the third since the last question, one is
/// asked half of the time if `ask` has one; the story ends with one of the first five.
fn carrying(random: &mut Random, ask: impl Fn(&Knowledge, &mut Random) -> Option<(String, String)>) -> Story {
    let mut world = World::new(ACTORS);
    let mut knowledge = Knowledge::default();
    let mut facts = Vec::new();
    let mut left = random.randint(1, QUESTIONS);
    let mut since = 0;
    loop {
        // Of the three kinds, two take or put down.
        let fact = world.next(random, &[EventKind::Move, EventKind::GetDrop, EventKind::GetDrop]);
        world.happens(fact);
        knowledge.learn(fact);
        facts.push(world.tell(random, fact));
        since += 1;
        if since > 2 && random.below(2) == 0 {
            if let Some((question, answer)) = ask(&knowledge, random) {
                left -= 1;
                since = 0;
                if left == 0 {
                    return Story { facts, question, answer };
                }
            }
        }
    }
}

fn where_is_object(random: &mut Random) -> Story {
    carrying(random, |knowledge, random| {
        let known: Vec<_> = (0..OBJECTS.len()).filter_map(|o| Some((o, knowledge.place(o)?.0))).collect();
        if known.is_empty() {
            return None;
        }
        let &(object, place) = random.choice(&known);
        Some((format!("Where is the {}?", OBJECTS[object]), PLACES[place].into()))
    })
}

fn where_was_object(random: &mut Random) -> Story {
    carrying(random, |knowledge, random| {
        // Three facts support the answer: somebody took the object and went to both places with it.
        let known: Vec<_> = (0..OBJECTS.len())
            .filter_map(|object| match knowledge.history[object][..] {
                [.., (before, since), (last, still)] if since == still => Some((object, before, last)),
                _ => None,
            })
            .collect();
        if known.is_empty() {
            return None;
        }
        let &(object, before, last) = random.choice(&known);
        let question = format!("Where was the {} before the {}?", OBJECTS[object], PLACES[last]);
        Some((question, PLACES[before].into()))
    })
}

/// Three places in a row, told by two facts about the middle one.
fn is_dir(random: &mut Random) -> Story {
    let places = random.sample(&PLACES, 3);
    // Each place is, say, west of the next.
    let (first, second) = *random.choice(&[("south", "north"), ("west", "east")]);
    let mut facts: Vec<_> = (0..2)
        .map(|i| {
            let (a, b) = (places[i], places[i + 1]);
            match random.below(2) {
                0 => format!("The {a} is {first} of the {b}."),
                _ => format!("The {b} is {second} of the {a}."),
            }
        })
        .collect();
    random.shuffle(&mut facts);
    let middle = places[1];
    let (direction, opposite, answer) =
        *random.choice(&[(first, second, places[0]), (second, first, places[2])]);
    let question = match random.below(2) {
        0 => format!("What is {direction} of the {middle}?"),
        _ => format!("What is the {middle} {opposite} of?"),
    };
    Story { facts, question, answer: answer.into() }
}

/// People who give things to one another; the question is about the last gift but for up to five other facts.
fn who_what_gave(random: &mut Random) -> Story {
    const KINDS: [EventKind; 4] = [EventKind::Get, EventKind::Drop, EventKind::Give, EventKind::Move];
    let mut world = World::new(GIVERS);
    let mut facts = Vec::new();
    let mut left = random.randint(1, QUESTIONS);
    let mut since = 0;
    loop {
        let fact = world.next(random, &KINDS);
        world.happens(fact);
        facts.push(world.tell(random, fact));
        since += 1;
        let Fact::Give { actor, object, to } = fact else { continue };
        if since < 2 {
            continue;
        }
        for _ in 1..random.randint(1, 6) {
            let other = loop {
                let other = world.next(random, &KINDS);
                let unrelated = match other {
                    Fact::Move { .. } => true,
                    Fact::Get { object: o, .. } | Fact::Drop { object: o, .. } => o != object,
                    Fact::Give { actor: a, object: o, to: t } => o != object && (a, t) != (actor, to),
                };
                if unrelated {
                    break other;
                }
            };
            world.happens(other);
            facts.push(world.tell(random, other));
        }
        left -= 1;
        since = 0;
        if left == 0 {
            let (giver, thing, taker) = (GIVERS[actor], OBJECTS[object], GIVERS[to]);
            let (question, answer) = match random.below(5) {
                0 => (format!("What did {giver} give to {taker}?"), thing),
                1 => (format!("Who gave the {thing} to {taker}?"), giver),
                2 => (format!("Who gave the {thing}?"), giver),
                3 => (format!("Who did {giver} give the {thing} to?"), taker),
                _ => (format!("Who received the {thing}?"), taker),
            };
            return Story { facts, question, answer: answer.into() };
        }
    }
}
