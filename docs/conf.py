"""How the documentation site is built; needs no network."""

import dpflows

project = "dpflows"
author = "the dpflows authors"
release = dpflows.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

html_theme = "furo"
html_title = f"dpflows {release}"
html_show_sourcelink = False
html_copy_source = False

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Guarantee"]

# scikit-learn adds these to every estimator; they are not ours to describe
autodoc_default_options["exclude-members"] = (
    "set_fit_request, set_predict_request, set_score_request"
)


def escape_bars(app, what, name, obj, options, lines):
    """Keep the bars of ``|x|`` in formulas from being read as substitutions."""
    for number, line in enumerate(lines):
        pieces = line.split("``")
        pieces[::2] = [piece.replace("|", r"\|") for piece in pieces[::2]]
        lines[number] = "``".join(pieces)


def setup(app):
    app.connect("autodoc-process-docstring", escape_bars)
