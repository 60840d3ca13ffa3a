"""The pass verify-descriptors: does the PTX say what the TTGIR means?"""
