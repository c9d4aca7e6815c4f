def findings(site):
    return []
