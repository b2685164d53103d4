"""Looking after studies from another shell: how far one is, and throwing away what nobody needs."""
