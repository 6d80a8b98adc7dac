//! What a request is answered does not depend on the cells that it gets.

use ropewalk::math::Math;
use ropewalk::scheduler::{Event, SchedulerParams};
use ropewalk::DType;

use super::super::model;
use super::{request, run, run_one, start, Log};
use crate::common::{params, some_tokens};

/// With the precision and the cache type that the program serves with: alone, after others, whose texts are kept between its
/// cells, and while others decode, bit for bit. Each time, its own parts of steps are the same.
#[test]
fn an_answer_does_not_depend_on_its_cells() {
    let m = model("llama-tiny", DType::Q8_0);
    let text = some_tokens(900, m.hparams().n_vocab);
    for rope in ["plain", "dca:chunk=48,local=8"] {
        let plan = params(512).n_seq_max(4).math(Math::Int8).rope(Some(rope.parse().unwrap()));
        let new = || start(m, SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(40)));
        let asked = || request(&text[..150], 40).reuse(false).echo(Some(1)).n_top(Some(3));
        let alone = run_one(&new(), asked());
        let scheduler = new();
        let others = (0..5).map(|i| request(&text[150 + i * 70..][..30 + 13 * i], 20 + i));
        run(&scheduler, others.collect());
        let after = run_one(&scheduler, asked());
        // Both others have made a token when it is submitted, and make more until after its end.
        let log = Log::new();
        let (sink, gate) = log.gated(2, |event| matches!(event, Event::Token(_)));
        let mut tickets = vec![scheduler.submit(request(&text[500..530], 90), log.sink(1)).unwrap()];
        tickets.push(scheduler.submit(request(&text[600..640], 90), sink).unwrap());
        gate.wait();
        tickets.push(scheduler.submit(asked(), log.sink(0)).unwrap());
        gate.open();
        let told = log.told(3);
        for (told, how) in [(&after, "after"), (&told[0], "beside")] {
            assert_eq!((told.echo.len(), told.scores.len()), (149, 40));
            assert_eq!((&told.echo, &told.scores), (&alone.echo, &alone.scores), "{rope}, {how} others");
        }
    }
}
