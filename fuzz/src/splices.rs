//! Inputs composed of parts of seeds. Shared by the ordinary tests of the fuzzed parsers.

use proptest::{prelude::*, sample::Index};

/// Inserts a part of one input into another: the input, the start and end of the part, and the position.
type Splice = (Index, Index, Index, Index);

pub(crate) fn splices() -> impl Strategy<Value = (Index, Vec<Splice>)> {
    (any::<Index>(), prop::collection::vec(any::<Splice>(), 0..6))
}

pub(crate) fn apply(seeds: &[impl AsRef<[u8]>], first: &Index, splices: &[Splice]) -> Vec<u8> {
    let mut input = first.get(seeds).as_ref().to_vec();
    for (other, from, to, at) in splices {
        let other = other.get(seeds).as_ref();
        let (from, to) = (from.index(other.len() + 1), to.index(other.len() + 1));
        let at = at.index(input.len() + 1);
        match other.get(from..to) {
            Some(part) => drop(input.splice(at..at, part.iter().copied())),
            // Start after end: truncate instead.
            None => input.truncate(at),
        }
    }
    input
}
