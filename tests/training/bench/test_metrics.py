"""Scores of an answer against values by hand, and ROUGE-L against the package."""

import random

import pytest

from models.errors import ConfigError
from training.bench.metrics import METRICS, answer_type, score
from training.bench.metrics.drop import drop_f1, spans_of
from training.bench.metrics.longbench import first_line_f1, qa_f1_zh
from training.bench.metrics.qasper import best_type
from training.bench.metrics.rouge import rouge_l
from training.bench.metrics.squad import squad_v2_f1
from training.bench.metrics.twowiki import two_wiki_f1
from training.bench.samples import Sample
from training.datasets.context import QAItem


def sample(*references: str, **facts: object) -> Sample:
    item = QAItem(question_id="q", question="Which?", answers=())
    return Sample(sample_id="q", document=0, item=item, references=references, **facts)


def no_answer(prediction: str, *references: str) -> float:
    return squad_v2_f1(prediction, references, refusal="unanswerable")


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence():
    # "red fox ran home" and "home ran red fox": the subsequence is "red fox": 2 * 2 / (4 + 4). Their F1 is 1.
    assert rouge_l("red fox ran home", ["home ran red fox"]) == pytest.approx(0.5)
    # "red fox slept" in "red old fox never slept": all 3 in order: 2 * 3 / (3 + 5).
    assert rouge_l("red fox slept", ["red old fox never slept"]) == pytest.approx(0.75)
    # Words repeat: "go go stop" and "go stop go": "go go" or "go stop": 2 * 2 / (3 + 3).
    assert rouge_l("go go stop", ["go stop go"]) == pytest.approx(2 / 3)


def test_rouge_l_reads_the_words_of_f1_and_takes_the_best_reference():
    assert rouge_l("The Red Fox!", ["a badger", "red fox"]) == 1.0
    # Chinese without spaces is one word: right or wrong as a whole.
    assert rouge_l("红狐狸", ["红狐狸"]) == 1.0
    assert rouge_l("红狐狸", ["狐狸"]) == rouge_l("", ["fox"]) == rouge_l("fox", []) == 0.0


def test_rouge_l_agrees_with_the_package_where_the_words_are_the_same():
    package = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed")
    reference_scorer = package.RougeScorer(["rougeL"], use_stemmer=False)
    chance = random.Random(0)
    for _ in range(200):
        left, right = (" ".join(chance.choices(["red", "fox", "12", "old", "ran"], k=9)) for _ in range(2))
        assert rouge_l(left, [right]) == pytest.approx(reference_scorer.score(right, left)["rougeL"].fmeasure)


def test_squad_v2_wants_an_empty_answer_exactly_where_there_is_none():
    assert no_answer("") == no_answer("unanswerable") == no_answer("Unanswerable.") == 1.0
    assert no_answer("Paris") == no_answer("it is unanswerable") == 0.0
    assert no_answer("", "Paris") == no_answer("unanswerable", "Paris") == 0.0


def test_squad_v2_counts_words_where_there_is_an_answer():
    # "lower Loire valley" and "Loire valley": 2 of 3 and 2 of 2: 2 * 2/3 / (5/3).
    assert no_answer("the lower Loire valley", "Paris", "Loire valley") == pytest.approx(0.8)


def test_squad_v2_drops_references_that_normalise_to_nothing():
    # "the" is no reference beside "Loire", so an empty answer is wrong; by itself it leaves none, and empty is right.
    assert no_answer("", "the", "Loire") == 0.0
    assert no_answer("", "the") == 1.0


def test_few_shot_subsets_are_scored_by_their_first_line():
    assert first_line_f1("\n\nErik Satie\nPassage:\nAnother example", ["Erik Satie"]) == 1.0
    # The second line does not count: nothing in common.
    assert first_line_f1("Debussy\nErik Satie", ["Erik Satie"]) == 0.0
    # Only line ends are stripped, so that a line of blanks is the first.
    assert first_line_f1(" \nErik Satie", ["Erik Satie"]) == 0.0


def test_chinese_is_scored_by_the_words_of_jieba():
    # 北京 | 的 | 大学 against 北京 | 的: 2 of 3 and 2 of 2: 2 * 2/3 / (5/3). By characters it would be 0.75.
    assert qa_f1_zh("北京的大学", ["清华", "北京的"]) == pytest.approx(0.8)
    assert qa_f1_zh("清华", ["北京"]) == qa_f1_zh("", ["北京"]) == 0.0


def test_f1_of_chinese_counts_its_words_too_for_no_space_parts_them():
    found = score("qa_f1_zh", "北京的大学", sample("北京的"))
    assert found["f1"] == found["official"] == pytest.approx(0.8)
    assert score("qa_f1", "北京的大学", sample("北京的"))["f1"] == 0.0
    assert score("qa_f1_zh", "unanswerable", sample(kind="off_topic"))["f1"] == 1.0


def test_chinese_punctuation_case_and_blanks_do_not_count_but_the_opening_title_mark_does():
    assert qa_f1_zh("北京。", ["“北京”！"]) == qa_f1_zh("GDP 增长", ["gdp增长"]) == 1.0
    # Of 《红楼梦》 the list has the closing mark alone: 《 | 红楼梦 against 红楼梦: 1 of 2 and 1 of 1.
    assert qa_f1_zh("《红楼梦》", ["红楼梦"]) == pytest.approx(2 / 3)


def test_drop_pairs_spans_so_that_the_sum_is_largest():
    # bags: {red, fox}, {red} against {red}, {red, fox}: crossed pairs score 1 and 1, straight ones 2/3 and 2/3.
    assert drop_f1(["red fox", "red"], [["red", "red fox"]]) == 1.0
    # First come, first served would pair "red fox" with "red fox hen" (0.8) and leave "hen owl" with "red fox" (0);
    # best is "red fox" with "red fox" (1) and "hen owl" with "red fox hen" (1 of 2, 1 of 3: 0.4): 1.4 / 2.
    assert drop_f1(["red fox", "hen owl"], [["red fox hen", "red fox"]]) == pytest.approx(0.7)


def test_drop_divides_by_the_longer_side():
    assert drop_f1(["fox"], [["fox", "hen"]]) == 0.5
    # 1 of 3, rounded to two decimals.
    assert drop_f1(["fox", "hen", "owl"], [["fox"]]) == 0.33


def test_drop_wants_one_of_the_numbers_of_the_reference():
    # Without the gate "5 yards" against "4 yards" would share 1 of 2 words.
    assert drop_f1(["5 yards"], [["4 yards"]]) == drop_f1(["yards"], [["4 yards"]]) == 0.0
    # {4.0} of {4.0, yards}: 1 and 0.5: 2/3, rounded. A reference without numbers takes any number beside its words.
    assert drop_f1(["4"], [["4 yards"]]) == 0.67
    assert drop_f1(["4 yards"], [["yards"]]) == 0.67


def test_drop_reads_numbers_in_one_form_and_parts_words_at_hyphens():
    assert drop_f1(["3,000"], [["3000.0"]]) == drop_f1(["$5"], [["5"]]) == drop_f1(["3.50"], [["3.5"]]) == 1.0
    assert drop_f1(["3.5"], [["35"]]) == 0.0
    # {4.0, yard, pass} against {4.0, yard}: 2/3 and 1: 0.8.
    assert drop_f1(["the 4-yard pass"], [["4 yard"]]) == 0.8


def test_drop_counts_a_word_once_and_takes_the_best_of_all_validators():
    # As sets {go} and {go, stop}: 1 and 0.5: 2/3; as bags 1 of 2 and 1 of 3: 0.4. An empty reference is none.
    assert drop_f1(["go go"], [["hen"], [""], ["go stop stop"]]) == 0.67


def test_text_becomes_spans_at_and_and_at_commas_before_a_blank():
    assert spans_of("foxes, hens, and owls") == spans_of("foxes and hens\nowls ") == ["foxes", "hens", "owls"]
    assert spans_of("1,000 sandy bands") == ["1,000 sandy bands"]
    assert spans_of(" ") == [""]


def test_yes_and_no_are_whole_answers_in_2wiki():
    assert two_wiki_f1("Yes.", ["yes"]) == 1.0
    # SQuAD's F1 would give 1 of 3 and 1 of 1, and the reverse.
    assert two_wiki_f1("yes they are", ["yes"]) == two_wiki_f1("no", ["no more war"]) == 0.0
    assert two_wiki_f1("noanswer", ["noanswer here"]) == 0.0


def test_2wiki_takes_the_best_alias_and_counts_words_elsewhere():
    # "French" is an alias; "not yes" is neither of the words: 1 of 2 and 1 of 3 with "yes or maybe": 0.4.
    assert two_wiki_f1("french", ["France", "French"]) == 1.0
    assert two_wiki_f1("not yes", ["yes or maybe"]) == pytest.approx(0.4)


def test_a_qasper_question_counts_under_the_type_of_its_nearest_reference():
    references, types = ("Yes", "two parsers, one tagger", "Unanswerable"), ("boolean", "extractive", "none")
    assert best_type("two taggers", references, types) == "extractive"
    assert best_type("unanswerable", references, types) == "none"
    assert best_type("something else", references, types) == "boolean"  # none is near: the first
    asked = sample(*references, answer_type="boolean", reference_types=types)
    assert answer_type("qasper", "one tagger", asked) == "extractive"
    assert answer_type("squad", "one tagger", asked) == "boolean"


def test_a_score_is_the_papers_and_the_official_side_by_side():
    # Words: 1 of 3 and 1 of 1: 0.5. Official: the answer is not "yes" as a whole.
    scores = score("2wiki", "yes they are", sample("Yes"))
    assert scores == {"f1": pytest.approx(0.5), "em": 0.0, "rouge_l": pytest.approx(0.5), "official": 0.0}


@pytest.mark.parametrize(
    ("metric", "prediction", "references", "expected"),
    [
        # SQuAD deletes punctuation: "coop" and "c" are words; bags count twice what stands twice: 2 of 3 and 2 of 2.
        ("squad", "Co-op C.", ["coop c"], 1.0),
        ("squad", "go go stop", ["stop go"], 0.8),
        # Articles go after punctuation: "a." is one, "theatre" is none. 1 of 1 and 1 of 2.
        ("squad", "a. theatre", ["the theatre, an inn"], 2 / 3),
        ("qa_f1", "The answer is Tor", ["Sol", "Tor."], 0.5),  # 1 of 3 and 1 of 1
        # DROP parts words at the hyphen, and a number within a longer reference opens its gate: {30.0, yard}.
        ("drop", "co-op", ["coop"], 0.0),
        ("drop", "30", ["30-yard"], 0.67),
        ("drop", "thirty yards", ["30 yards"], 0.0),
        # Two spans for one: {7.0} fits, 1 of 2; the second reference is fitted whole.
        ("drop", "7 and 9", ["7"], 0.5),
        ("drop", "7 and 9", ["7", "7 and 9"], 1.0),
        ("2wiki", "No, never", ["no"], 0.0),
        ("2wiki", "no.", ["No"], 1.0),
        ("qasper", "BLEU", ["Unanswerable", "BLEU, ROUGE"], 2 / 3),
        ("qasper", "unanswerable", ["Unanswerable", "BLEU, ROUGE"], 1.0),
        ("squad_v2", "a", ["Tor"], 0.0),  # nothing is left of it: no answer
        ("qa_f1_first_line", "Tor\n\nPassage: Sol", ["Tor"], 1.0),
        ("rouge_l", "the old red fox", ["fox, red"], 2 * 1 / (3 + 2)),
    ],
)
def test_official_scores_by_hand(metric, prediction, references, expected):
    spans = tuple(tuple(reference.split(" and ")) for reference in references)
    asked = sample(*references, spans=spans if metric == "drop" else ())
    assert score(metric, prediction, asked)["official"] == pytest.approx(expected)


@pytest.mark.parametrize("metric", METRICS)
def test_a_refusal_is_right_where_nothing_can_be_answered_under_every_metric(metric):
    assert score(metric, "Unanswerable.", sample(kind="human")) == dict.fromkeys(("f1", "em", "rouge_l", "official"), 1)
    assert score(metric, "Satie", sample(kind="human"))["official"] == 0.0
    assert score(metric, "unanswerable", sample("Satie"))["official"] == 0.0


def test_drop_is_scored_by_the_spans_of_a_sample():
    asked = sample("foxes and hens", spans=(("foxes", "hens"),))
    assert score("drop", "hens and foxes", asked)["official"] == 1.0
    # {foxes}, {owls} against {foxes}, {hens}: 1 of 2 pairs.
    assert score("drop", "foxes, owls", asked)["official"] == 0.5


def test_an_unknown_metric_is_refused():
    with pytest.raises(ConfigError, match=r"metric must be one of squad, .*, got 'bleu'"):
        score("bleu", "fox", sample("fox"))
