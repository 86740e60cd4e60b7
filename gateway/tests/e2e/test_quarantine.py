"""Real engines show what they can do before they get work: none that is honest may fail, whatever its model is like."""
import pytest

MODELS = ["tiny", "polyglot", "thinker", "talker", "caller", "decider", "smollm2"]


@pytest.mark.parametrize("model", MODELS)
def test_a_real_engine_passes_with_its_first_speeds(stage, model):
    gateway = stage.gateway([stage.llama(model=model)], config={"quarantine": {"of": "all"}}, ready=0)
    # The real one reads 300 tokens on one core that it shares.
    gateway.wait_ready(1, within=180)
    assert gateway.metrics().sum("huntgroup_quarantine_total", outcome="passed") == 1
    assert gateway.metrics().sum("huntgroup_quarantine_total") == 1, "it passed at once"
    [replica] = gateway.replicas()
    assert [change["reason"] for change in replica["history"]] == ["unproven", "proven"], replica["history"]
    assert replica["proven_at"] > 0
    if model != "decider":
        assert replica["assumed"]["prefill_tokens_per_second"] > 0 and replica["assumed"]["decode_tokens_per_second"] > 0


def test_an_engine_for_embeddings_alone_passes(stage):
    gateway = stage.gateway([stage.llama(embeddings=True)], config={"quarantine": {"of": "all"}})
    assert gateway.metrics().sum("huntgroup_quarantine_total", outcome="passed") == 1
    assert gateway.metrics().sum("huntgroup_quarantine_total") == 1
