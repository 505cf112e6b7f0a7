from scripts.check_docs import problems


def test_documents_tell_the_truth_about_the_tree() -> None:
    assert problems() == []
