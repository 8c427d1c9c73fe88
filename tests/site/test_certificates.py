"""The page of certificates shows the stored rows, and says where a bar is missed."""

from tests.site import certificates
from tests.site.evidence import renewed, stored


def test_the_page_is_made_from_the_stored_rows():
    text = certificates.PAGE.read_text()
    assert text == renewed(text, certificates.parts(), certificates.MAKER), "python -m tests.site.certificates"


def test_what_is_lost_or_slow_is_said():
    rows = stored("proofs")["rows"]
    worse = {**rows[1], "integers": True, "lost": 1.5, "bare_cpu": 2.0, "asked_cpu": 3.0, "proof_cpu": 1.0}
    text = "\n".join(certificates.facts([*rows, worse]))
    assert f"{certificates.named(worse)} loses 1.500 %" in text
    assert "planning on 1 of" in text
    assert "planning on 0 of" in "\n".join(certificates.facts(rows))
