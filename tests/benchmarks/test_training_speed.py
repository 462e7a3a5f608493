"""The benchmark of the feature cache: what its invented passages hold, and how it takes the first ones."""

from benchmarks.training_speed import first_records, invented_records


def test_invented_passages_have_as_many_sentences_as_are_asked_for():
    records = invented_records(7, num_sentences=3)
    assert [len(r.atoms) for r in records] == [len(r.qa_pairs) for r in records] == [3, 3, 1]
    assert all(r.context[a.char_start : a.char_end] == a.content for r in records for a in r.atoms)


def test_the_first_passages_stay_within_the_number_of_questions():
    records = invented_records(7, num_sentences=3)
    assert first_records(records, 5) == records[:1] and first_records(records, 6) == records[:2]
