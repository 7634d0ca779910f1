"""What every text model keeps to; see evokernel/archive/embed.py. Call `check` with a model."""

import numpy as np

from evokernel.archive.embed import TextModel

LONG = "".join(f"Row {n} stays in_registers; float4 läuft über 行 {n * 7919}.\n" for n in range(300))


def check(model: TextModel) -> None:
    assert model.id and str(model.dimension) in model.id
    texts = ["prefix sum", "", "average pooling of images", LONG[:200]]
    made = model.embed(texts)
    assert made.shape == (4, model.dimension) and made.dtype == np.float32 and np.isfinite(made).all()
    assert np.allclose(model.embed(texts[2:3])[0], made[2], atol=1e-4), "a vector depends on its text alone"
    assert np.allclose(np.linalg.norm(made[[0, 2, 3]], axis=1), 1, atol=1e-3)
    for text in (*texts, LONG):
        at = 0
        for part in model.parts(text):
            begin = text.rfind(part, 0, at + len(part))  # where it may begin at the latest
            assert begin >= 0, "something between two parts is in neither"
            at = begin + len(part)
        assert at == len(text), "the end of a text is in no part"
        assert len(model.embed(model.parts(text))) == len(model.parts(text)) > 0
