"""Word lists of the rules backend, all English; other languages simply match none of them.

Holds closed word classes and cue words, nothing that looks at a text.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _words(
    """a about above after again all also although am among an and another any are as at be because been before being
    below between both but by can could did do does doing down during each either even ever every few for from further
    had has have having he her here hers herself him himself his how however i if in into is it its itself just may me
    might more most much must my myself neither no nor not now of off on once one only onto or other our ours out over
    own per same shall she should since so some still such than that the their theirs them themselves then there
    therefore these they this those though through thus to too toward towards under until unto up upon us very was we
    were what when where whereas whether which while who whom whose why will with within without would yet you your"""
)
"""Function words: they neither name anything nor help a search."""

JOINING_WORDS = _words("a an and are as at by for from in is it of on or that the to was were which with")
"""Lower-case words that table cells seldom hold and running prose always does."""
