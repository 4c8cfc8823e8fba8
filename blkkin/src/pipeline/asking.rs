//! What a person should know, at the end, of requests to NBD servers (`--nbd`).

use blkkin_aggregator::stage::meet::MeetBooks;
use blkkin_tracer::nbd::NbdBooks;

/// In words, the worst last.
pub(crate) fn remarks(asked: &NbdBooks, met: Option<&MeetBooks>) -> Vec<String> {
    let mut first = format!("nbd: {} requests asked, {} answered", asked.asked, asked.answered);
    // An agent's meet elsewhere.
    if let Some(met) = met {
        first += &format!(", {} met what a daemon said of them", met.matched / 2);
    }
    let mut all = vec![first];
    let mut say = |count: u64, words: &str| {
        if count > 0 {
            all.push(format!("nbd: {count} {words}"));
        }
    };
    say(asked.unanswered, "requests have no answer that was seen");
    say(asked.cut_off, "of these were asked on a connection that ended first");
    say(asked.resent, "segments with bytes of requests were sent once more by TCP");
    say(asked.withdrawn, "times a socket was full, and its client came again with the request");
    say(asked.strangers, "answers were to requests that were not seen");
    say(met.map_or(0, |met| met.refused), "ends of requests were refused: several bear one name");
    say(asked.cut, "buffers held a part of a header, or more than one: what lies behind was not seen");
    say(asked.in_data, "sends looked like requests where data were due, and were taken for data");
    say(asked.extended, "requests had extended headers, which are not followed");
    say(asked.dropped, "records were lost, as the rings were full");
    let missing = asked.fired.saturating_sub(asked.recorded + asked.dropped);
    say(missing, "records were written and never read");
    all
}
