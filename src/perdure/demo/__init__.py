"""The demonstration: every Python file of a directory is analysed by workers, one of which is killed half way.

`analysis` looks at files and knows nothing of Perdure; `app` makes workflows of it; `stage` runs them and kills the
worker; `proof` checks what came out; `display` shows all of it.
"""

URL_VARIABLE = "PERDURE_DEMO_URL"
"""The environment variable that tells the module of the workflows, in every process, where its store is."""
