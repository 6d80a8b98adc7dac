//! Columns of attention: cells in the order of positions.

use std::ops::Range;

use ggml::attention::KEYS;
use ropewalk::internals::kv::{Cells, Columns, Span};
use ropewalk::rope::Reach;

/// The positions that a sequence sees, block by block. Its cells must be the right ones.
fn seen(cells: &Cells, columns: &Columns, seq: u32) -> Vec<Vec<i32>> {
    let span = columns.span();
    let rows: Vec<u32> = columns.rows(span.start).flat_map(|(rows, _)| rows).collect();
    let mut positions = Vec::new();
    columns.positions(seq, -1, &mut positions);
    assert!(rows.len() == positions.len() && rows.len() <= span.columns);
    assert!(rows.iter().all(|&row| (row as usize) < span.len));
    for (&row, &pos) in rows.iter().zip(&positions).filter(|(_, &pos)| pos >= 0) {
        let cell = cells.all()[span.start + row as usize];
        assert!(cell.pos == pos && cell.seqs & (1 << seq) != 0, "{pos}: {cell:?}");
    }
    let blocks = positions.chunks(KEYS).map(<[i32]>::to_vec);
    blocks.filter(|block| block.iter().any(|&pos| pos >= 0)).collect()
}

fn text(seq: u32, positions: Range<i32>) -> Vec<(u32, i32)> {
    positions.map(|pos| (seq, pos)).collect()
}

/// A text has the same blocks alone, after others, between others, in cells out of order, and where it shares some.
#[test]
fn blocks_are_those_of_positions_wherever_the_cells_are() {
    let reaches =
        [Reach::CAUSAL, Reach { dist_end: 90, ..Reach::CAUSAL }, Reach { key_end: 70, ..Reach::CAUSAL }];
    let mut alone = Cells::new(1000);
    alone.allocate(&text(0, 0..200)).unwrap();
    // Sequences 1, 0, 2 and 3 in turns, in what others left.
    let mut among = Cells::new(1000);
    among.allocate(&text(9, 0..70)).unwrap();
    among.allocate(&text(1, 0..130)).unwrap();
    among.allocate(&text(0, 0..150)).unwrap();
    among.copy(0, 2);
    among.remove(9, 0);
    for pos in 150..200 {
        among.allocate(&[(0, pos), (2, pos + 20), (3, pos)]).unwrap();
    }
    let with: [&[(u32, i32)]; 3] = [&[], &[(1, 129)], &[(2, 219), (3, 199)]];
    for (at, reach) in [199, 170].into_iter().flat_map(|at| reaches.map(|reach| (at, reach))) {
        let expected = seen(&alone, &alone.columns(&[(0, at)], &reach), 0);
        assert!(!expected.is_empty());
        for others in with {
            let columns = among.columns(&[&[(0, at)][..], others].concat(), &reach);
            assert_eq!(seen(&among, &columns, 0), expected, "{at}, {reach:?}, {others:?}");
        }
    }
    // In order of positions: those that are shared once, others next to each other.
    let columns = among.columns(&[(0, 199), (2, 219)], &Reach::CAUSAL);
    assert!(columns.rows(0).map(|(_, place)| place).eq([0, 1, 2, 2, 3, 3]));
    let of = |seq: u32| -> Vec<bool> {
        let mut positions = Vec::new();
        columns.positions(seq, -1, &mut positions);
        positions.chunks(KEYS).map(|block| block.iter().any(|&pos| pos >= 0)).collect()
    };
    assert_eq!(of(0), [true, true, true, false, true, false]);
    assert_eq!(of(2), [true, true, false, true, false, true]);
}

#[test]
fn a_text_alone_has_its_cells_in_order() {
    let mut cells = Cells::new(1000);
    assert_eq!(cells.columns(&[(0, 5)], &Reach::CAUSAL).span(), Span::default());
    cells.allocate(&text(0, 0..300)).unwrap();
    let columns = cells.columns(&[(0, 299)], &Reach::CAUSAL);
    let span = columns.span();
    assert_eq!(span, Span { start: 0, len: 512, columns: 512 });
    assert!(columns.rows(0).flat_map(|(rows, _)| rows).take(300).eq(0..300));
    let positions = |seq: u32| {
        let mut positions = Vec::new();
        columns.positions(seq, -1, &mut positions);
        positions
    };
    assert_eq!(positions(0), (0..320).map(|pos| if pos < 300 { pos } else { -1 }).collect::<Vec<i32>>());
    assert_eq!(positions(1), [-1; 320]);
}
