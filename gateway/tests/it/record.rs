//! What the scheduler did in a process is played again exactly.

use std::{fs::File, io::BufReader, path::Path};

use rustix::process::Signal;
use simulation::record::{Replayed, replay};

use crate::harness::{Fleet, Gateway, chat, phone};

fn play(path: &Path) -> Replayed {
    replay(BufReader::new(File::open(path).expect("a record"))).expect("it plays as it was")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_a_process_plays_again_and_holds_no_word_of_a_client() {
    let fleet = Fleet::of(2, &phone(2, 50.0)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.record");
    let config = format!("[scheduler]\nrecord = \"{}\"\n", path.display());
    let mut gateway = Gateway::over(&fleet, &config).await;
    for number in 0..4 {
        let prompt = format!("saffron {number}");
        assert!(gateway.chat(&chat(&prompt, number % 2 == 0, 5)).await.is_whole(&prompt, 5));
    }
    gateway.wait_at_rest().await;
    gateway.signal(Signal::TERM);
    assert!(gateway.exited().await.success());
    let played = play(&path);
    assert!(!played.torn && played.unconfirmed == 0, "{played:?}");
    assert_eq!(played.classes.iter().map(|class| class.answered).sum::<u64>(), 4);
    let text = std::fs::read_to_string(&path).expect("text");
    for word in ["saffron", &fakephone::answer_text("tiny", "saffron 0", 5), fleet.phones[0].id()] {
        assert!(!text.contains(word), "{word} is in the record");
    }
    gateway.restart().await;
    gateway.wait_ready(2).await;
    assert_eq!(play(&folder.path().join("run.record.before")).events, played.events, "the earlier run is kept");
}
