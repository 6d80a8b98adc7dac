//! The Mersenne Twister.

/// Words of the state.
const N: usize = 624;
/// Distance of the word that is mixed in.
const M: usize = 397;

/// A generator of 32-bit words with a period of 2^19937 - 1.
#[derive(Clone)]
pub struct Mt19937 {
    state: [u32; N],
    /// The next word to give; `N` when the state must be renewed.
    next: usize,
}

impl Mt19937 {
    /// Seeded with one word (`init_genrand`).
    pub(super) fn from_word(seed: u32) -> Mt19937 {
        let mut state = [0; N];
        let mut last = seed;
        state[0] = seed;
        for (word, i) in state[1..].iter_mut().zip(1u32..) {
            last = 1_812_433_253u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i);
            *word = last;
        }
        Mt19937 { state, next: N }
    }

    /// Seeded with several words (`init_by_array`); at least one.
    pub fn from_words(key: &[u32]) -> Mt19937 {
        let mut rng = Mt19937::from_word(19_650_218);
        let state = &mut rng.state;
        let mixed = |previous: u32, factor: u32| (previous ^ (previous >> 30)).wrapping_mul(factor);
        let mut i = 1;
        for (&word, j) in key.iter().zip(0u32..).cycle().take(key.len().max(N)) {
            state[i] = (state[i] ^ mixed(state[i - 1], 1_664_525)).wrapping_add(word).wrapping_add(j);
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        for _ in 1..N {
            state[i] = (state[i] ^ mixed(state[i - 1], 1_566_083_941)).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        state[0] = 0x8000_0000;
        rng
    }

    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.renew();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn renew(&mut self) {
        for i in 0..N {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let twist = if joined & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + M) % N] ^ (joined >> 1) ^ twist;
        }
        self.next = 0;
    }
}
