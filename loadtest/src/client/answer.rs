//! Whether an answer is the one that belongs to its prompt, and whole.
//!
//! A fake phone's answer is a function of the message alone: the first word carries a digest of the message, the second
//! names the phone's model, and then the message's words follow, over and over. The second word is not compared: a pool
//! may serve one model from different files.

use super::Failure;

/// Compares `answer` with what a fake phone says to `message` in `tokens` words.
pub(crate) fn check(answer: &str, message: &str, tokens: u32) -> Result<(), Failure> {
    let wanted = fakephone::answer_text("model", message, tokens as usize);
    let (mut right, mut differs) = (0, false);
    let mut words = answer.split(' ');
    for (index, expected) in wanted.split(' ').enumerate() {
        let Some(word) = words.next() else { break };
        if word != expected && index != 1 {
            if index == 0 && word.starts_with('#') {
                return Err(Failure::WrongAnswer(format!("{word} instead of {expected}")));
            }
            differs = true;
            break;
        }
        right += 1;
    }
    let got = answer.split(' ').count();
    if differs || got != tokens as usize {
        return Err(Failure::TokensLostOrDoubled { got, wanted: tokens as usize, right });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_must_belong_to_its_message_and_be_whole() {
        let said = |message, tokens| fakephone::answer_text("phones/own-name.gguf", message, tokens);
        assert_eq!(check(&said("one two three", 9), "one two three", 9), Ok(()));
        assert!(matches!(check(&said("another", 9), "one two three", 9), Err(Failure::WrongAnswer(_))));
        let cut = check(&said("one two three", 8), "one two three", 9);
        assert_eq!(cut, Err(Failure::TokensLostOrDoubled { got: 8, wanted: 9, right: 8 }));
        let doubled = said("one two three", 9).replacen(" two", " two two", 1);
        assert!(matches!(check(&doubled, "one two three", 9), Err(Failure::TokensLostOrDoubled { right: 4, .. })));
        assert!(check("", "one", 3).is_err());
    }
}
